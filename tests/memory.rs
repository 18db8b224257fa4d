//! What the tracker allocates stays within bounds that follow from its limits.
//!
//! One test only, since the whole process is measured.

mod common;
#[path = "common/measured.rs"]
mod measured;

use common::*;
use kvlease::{Config, Notified, SendTracker};
use measured::in_use;
use std::fmt::Write;
use std::time::Duration;

const MIB: isize = 1 << 20;

#[test]
fn f05_memory_stays_under_the_cap_whatever_comes_in() {
    let before = in_use();
    let t = SendTracker::with_config(Config { tombstone_capacity: 1_024, ..config() });
    let mut id = String::with_capacity(2 << 20);
    let fresh = |id: &mut String, i: u32, len: usize| {
        id.clear();
        write!(id, "{i:07}-").unwrap();
        id.extend(std::iter::repeat_n('r', len - 8));
    };

    // A flood of notifications for ids that nobody tracks: at most 4,096 are kept, of 1 KiB each at most.
    let mut kept = 0;
    for i in 0..1_000_000 {
        let len = [43, 52, 110, 1_024][i as usize % 4];
        fresh(&mut id, i, len);
        kept += u32::from(matches!(t.notify_expecting(&id, rank(1), 8, at(1)), Notified::Early));
    }
    assert_eq!(kept, 4_096);
    for i in 0..100 {
        fresh(&mut id, i, 1 << 20);
        assert_eq!(t.notify(&id, rank(1), at(1)), Notified::Unknown);
    }
    let flooded = in_use() - before;
    assert!(flooded < 12 * MIB, "{flooded} bytes after the flood");
    drop(t.sweep(at(6)));

    // Many lives, each ended in its own way: what is remembered is bounded too.
    let churn = |t: &SendTracker<u64>, id: &mut String, from: u32| {
        for i in from..from + 100_000 {
            let now = at(10 + u64::from(i) / 1_000);
            fresh(id, i, [43, 52, 110, 200][i as usize % 4]);
            if i % 5 == 0 {
                _ = t.renew(id, now + Duration::from_secs(1), Some(rank(2)), now);
            }
            lease(t, id, kvlease::Terms::until(now + Duration::from_secs(2)).consumers(2), 1, now);
            _ = t.renew(id, now + Duration::from_secs(3), Some(rank(2)), now);
            match i % 3 {
                0 => drop(t.abort(id, now)),
                1 => {
                    drop(t.notify(id, rank(1), now));
                    drop(t.notify(id, rank(2), now));
                }
                _ => {}
            }
            if i % 100 == 0 {
                drop(t.sweep(now));
            }
        }
    };
    churn(&t, &mut id, 0);
    let after_one = in_use();
    churn(&t, &mut id, 100_000);
    churn(&t, &mut id, 200_000);
    let growth = in_use() - after_one;
    assert!(growth < MIB, "{growth} bytes more after three times the work");

    // And everything goes with the tracker.
    drop(t.shutdown(at(1_000)));
    drain(&t, at(1_000));
    assert_empty(&t.stats());
    let drained = in_use() - before;
    assert!(drained < 8 * MIB, "{drained} bytes in a drained tracker");
    drop(t);
    // What is retired is freed when other pins have let go of it.
    for _ in 0..1_000 {
        drop(SendTracker::<u64>::new().abort("a", at(0)));
    }
    let left = in_use() - before - id.capacity() as isize;
    assert!(left < MIB, "{left} bytes left after the tracker");
}
