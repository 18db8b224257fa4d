//! What many measurements of one thing come to.

use serde::Serialize;

/// The median of some values, and the quartiles on either side.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// A quarter of the values are below.
    pub q1: f64,
    /// Half of the values are below.
    pub median: f64,
    /// Three quarters of the values are below.
    pub q3: f64,
    /// How many values there are.
    pub n: usize,
}

impl Spread {
    /// Of these values; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let at = |part: f64| {
            let place = part * (n - 1) as f64;
            let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        (n > 0).then(|| Spread { q1: at(0.25), median: at(0.5), q3: at(0.75), n })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_values() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([4.0]), Some(Spread { q1: 4.0, median: 4.0, q3: 4.0, n: 1 }));
        assert_eq!(Spread::of([5.0, 1.0, 3.0, 2.0, 4.0]), Some(Spread { q1: 2.0, median: 3.0, q3: 4.0, n: 5 }));
        assert_eq!(Spread::of([1.0, 2.0]), Some(Spread { q1: 1.25, median: 1.5, q3: 1.75, n: 2 }));
    }
}
