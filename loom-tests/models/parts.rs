//! Small parts: the array that grows, the pool of slots, and the seam of reclamation itself.

use super::harness::Model;
use crate::segments::{Segments, ZeroInit};
use crate::sync::{AtomicU64, Ordering};

#[derive(Default)]
struct Word(AtomicU64);

// SAFETY: a zero `AtomicU64` is its default, without drop glue.
unsafe impl ZeroInit for Word {}

#[test]
fn segments() {
    // Element 4 is in the second segment, which two threads make at the same time.
    Model::new("segments: alloc ‖ alloc ‖ get", "one address")
        .expect(
            [
                "[0, 1] None",
                "[1, 0] None",
                "[0, 1] Some(0)",
                "[1, 0] Some(0)",
                "[0, 1] Some(1)",
                "[1, 0] Some(1)",
                "[0, 1] Some(2)",
                "[1, 0] Some(2)",
            ]
            .map(String::from)
            .into(),
        )
        .run(
            Segments::<Word>::new,
            &[
                |s| s.get_or_alloc(4).map(|word| word.0.fetch_add(1, Ordering::Relaxed)),
                |s| s.get_or_alloc(4).map(|word| word.0.fetch_add(1, Ordering::Relaxed)),
                |s| s.get(4).map(|word| word.0.load(Ordering::Relaxed)),
            ],
            |s, found| {
                assert_eq!(s.get(4).unwrap().0.load(Ordering::Relaxed), 2);
                format!("{:?} {:?}", found[..2].iter().map(|n| n.unwrap()).collect::<Vec<_>>(), found[2])
            },
        );
}
