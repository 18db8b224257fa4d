//! Is a recorded history linearizable? The search of Wing and Gong (1993) with the memory of Lowe (2017).
//!
//! A history is what several threads did to **one** object (one key, one id: linearizability is local, so
//! each can be checked alone): calls with their answers, and two stamps each, taken before the call and
//! after it. It is linearizable if the calls can be put into one order that keeps every pair in which one
//! had returned before the other began, and in which a plain sequential object gives the same answers.
//!
//! The calls of a lane (a thread) do not overlap, so a set of calls already put in order is a number for
//! each lane. That makes a configuration, those numbers and the state of the plain object, small, and the
//! search a walk from frontier to frontier: all configurations after n calls give all those after n + 1.
//! Each is visited once. Nothing is sampled: a history that passes has an order.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// One call with its answer.
#[derive(Clone, Debug)]
pub struct Call<C> {
    pub lane: usize,
    pub began: u64,
    pub ended: u64,
    pub what: C,
}

/// The plain sequential object.
pub trait Object {
    type What: Debug;
    type State: Clone + Eq + Hash + Debug;

    fn start(&self) -> Self::State;

    /// The states after a call from which it can have got its answer; none if it cannot.
    fn states_after(&self, state: &Self::State, call: &Call<Self::What>) -> Vec<Self::State>;

    /// What others may see of a call before its effect, if it is documented to have two steps.
    fn half_way(&self, state: &Self::State, call: &Call<Self::What>) -> Option<Self::State> {
        let _ = (state, call);
        None
    }
}

/// Why a history is not linearizable: the calls of which none can come next, whatever came before.
#[derive(Debug)]
pub struct Violation(#[allow(dead_code)] pub String);

/// How a search went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    pub calls: usize,
    /// Calls that began before the one before them had returned.
    pub overlapping: usize,
    pub configurations: usize,
}

pub fn check<O: Object>(object: &O, mut history: Vec<Call<O::What>>) -> Result<Work, Violation> {
    history.sort_by_key(|call| call.began);
    let mut work = Work { calls: history.len(), ..Work::default() };
    let mut latest = 0;
    for call in &history {
        assert!(call.began < call.ended);
        work.overlapping += usize::from(call.began < latest);
        latest = latest.max(call.ended);
    }
    let mut lanes: Vec<Vec<&Call<O::What>>> = Vec::new();
    for call in &history {
        if lanes.len() <= call.lane {
            lanes.resize_with(call.lane + 1, Vec::new);
        }
        assert!(lanes[call.lane].last().is_none_or(|last| last.ended < call.began), "a lane is one thread");
        lanes[call.lane].push(call);
    }
    lanes.retain(|lane| !lane.is_empty());

    let mut frontier = HashSet::from([(vec![0u32; lanes.len()], object.start())]);
    for _ in 0..history.len() {
        let mut after = HashSet::new();
        let mut open: Vec<_> = frontier.iter().cloned().collect();
        while let Some((done, state)) = open.pop() {
            let next =
                || lanes.iter().zip(&done).enumerate().filter_map(|(l, (lane, n))| Some((l, *lane.get(*n as usize)?)));
            // Whoever has returned before another began goes first.
            let first_return = next().map(|(_, call)| call.ended).min().unwrap_or(0);
            for (lane, call) in next().filter(|(_, call)| call.began < first_return) {
                for state in object.states_after(&state, call) {
                    let mut done = done.clone();
                    done[lane] += 1;
                    after.insert((done, state));
                }
                if let Some(state) = object.half_way(&state, call) {
                    let seen = (done.clone(), state);
                    if frontier.insert(seen.clone()) {
                        open.push(seen);
                    }
                }
            }
        }
        if after.is_empty() {
            return Err(violation(&lanes, &frontier));
        }
        work.configurations += frontier.len();
        frontier = after;
    }
    Ok(work)
}

fn violation<C: Debug, S: Debug>(lanes: &[Vec<&Call<C>>], frontier: &HashSet<(Vec<u32>, S)>) -> Violation {
    use std::fmt::Write;
    let mut text = String::new();
    for (done, state) in frontier.iter().take(4) {
        _ = writeln!(text, "after {done:?} calls the state is {state:?}, and next would be");
        for (lane, n) in lanes.iter().zip(done) {
            for call in lane.iter().skip(*n as usize).take(1) {
                _ = writeln!(text, "  [{}..{}] {}: {:?}", call.began, call.ended, call.lane, call.what);
            }
            for call in &lane[(*n as usize).saturating_sub(3)..*n as usize] {
                _ = writeln!(text, "      before: [{}..{}] {}: {:?}", call.began, call.ended, call.lane, call.what);
            }
        }
    }
    Violation(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A register.
    #[derive(Clone, Copy, Debug)]
    enum Register {
        Write(u8),
        Read(u8),
    }

    struct Registers;

    impl Object for Registers {
        type What = Register;
        type State = u8;

        fn start(&self) -> u8 {
            0
        }

        fn states_after(&self, state: &u8, call: &Call<Register>) -> Vec<u8> {
            match call.what {
                Register::Write(n) => vec![n],
                Register::Read(n) if n == *state => vec![n],
                Register::Read(_) => vec![],
            }
        }
    }

    fn ok(calls: &[(usize, u64, u64, Register)]) -> bool {
        let call = |c: &(usize, u64, u64, Register)| Call { lane: c.0, began: c.1, ended: c.2, what: c.3 };
        check(&Registers, calls.iter().map(call).collect()).is_ok()
    }

    #[test]
    fn what_overlaps_may_come_in_either_order_and_what_does_not_may_not() {
        use Register::*;
        assert!(ok(&[]));
        assert!(ok(&[(0, 1, 2, Write(1)), (1, 3, 4, Read(1))]));
        assert!(!ok(&[(0, 1, 2, Write(1)), (1, 3, 4, Read(0))]), "a write that had returned is not seen");
        assert!(ok(&[(0, 1, 4, Write(1)), (1, 2, 3, Read(0))]));
        assert!(ok(&[(0, 1, 4, Write(1)), (1, 2, 3, Read(1))]));
        assert!(!ok(&[(1, 1, 2, Read(1)), (0, 3, 4, Write(1))]), "a read sees the future");
        // Two readers of one write must agree on when it was.
        assert!(!ok(&[(0, 1, 10, Write(1)), (1, 2, 3, Read(1)), (2, 4, 5, Read(0))]));
        assert!(ok(&[(0, 1, 10, Write(1)), (1, 2, 3, Read(0)), (2, 4, 5, Read(1))]));
        assert!(ok(&[(0, 1, 10, Write(1)), (1, 2, 5, Read(1)), (2, 4, 6, Read(0))]));
        // Two writers, and two readers that see them in different orders.
        let writes = [(0, 1, 20, Write(1)), (1, 2, 20, Write(2))];
        let reads = |a, b, c, d| [(2, 3, 4, Read(a)), (2, 5, 6, Read(b)), (3, 7, 8, Read(c)), (3, 9, 10, Read(d))];
        assert!(ok(&[&writes[..], &reads(1, 2, 2, 2)].concat()));
        assert!(!ok(&[&writes[..], &reads(1, 2, 1, 2)].concat()));
        assert!(!ok(&[&writes[..], &reads(1, 2, 2, 1)].concat()));
    }
}
