//! Which entries are due: a tree of minima over the slots of the map.
//!
//! ```text
//! root                        min of all
//!  ...
//! level 1            min of 8 nodes  |  min of 8 nodes  | ...
//! level 0     min of 8 slots | min of 8 slots | ...
//! (leaves)    the words of the leases in the slots themselves
//! ```
//!
//! Each node holds a **lower bound** of the times at which a sweep has something to do below it. The
//! times themselves are in the leases' words and nowhere else, so to renew a lease, which only ever
//! raises its time, touches nothing here, and what ends needs not be taken out: the bound has become too
//! low, and the next sweep that passes it raises it, once for eight slots. A sweep with nothing due
//! looks at the root alone. Memory follows the most leases ever live at once: 1.14 bytes for each.
//!
//! # Protocol
//!
//! A node is one word: `minimum:38 | unsettled:1 | version:25`.
//!
//! * **Lower** ([`schedule`](DeadlineIndex::schedule)), after the lease's word has got its new time: from
//!   level 0 upwards, lower the node to that time if it is higher, in any case raise its version, and
//!   mark it unsettled; go on with the node's minimum. Stop at a node that is low enough and settled, which
//!   it stays. Then, from above, mark as settled those that have not changed since.
//! * **Raise** (a visit): read the node, look at everything below it, exchange the node as read for the
//!   minimum that was found. If something below was lowered after it was looked at, the version has
//!   changed, and the exchange fails; if before, the look has seen it. No scan ever hides an entry, not even
//!   for a moment, and a visitor that stalls keeps nothing from the others. A visit that meets a lowering may
//!   lower a node, too; the nodes above are then still higher, so it marks it unsettled.
//! * **Settled** means that all nodes above are at least as low. A lowering that stalls half-way up leaves
//!   its nodes unsettled, so another one that comes along the same way does not rely on it, but carries
//!   that node's minimum up along with its own.
//!
//! Both are lock-free. The version wraps after 2²⁵ changes of one node; a visitor would have to sleep
//! through exactly that many between its look and its exchange.

use crate::lease::word::NEVER;
use crate::segments::{Segments, ZeroInit};
use crate::sync::{AtomicU64, Ordering};

/// Fan-out: 8, which makes the children of a node one cache line. In models of the tracker four.
const FAN: u32 = if cfg!(kvlease_loom) { 2 } else { 3 };
/// Enough for 2³² slots. In models of the tracker one level, which is four slots; the models of the index itself
/// have three levels, and ask for a fan-out of two.
const ENOUGH: usize = if cfg!(kvlease_loom) { 1 } else { 11 };

const MIN_SHIFT: u32 = 26;
const UNSETTLED: u64 = 1 << 25;
const VERSION_MASK: u64 = UNSETTLED - 1;

/// The minimum is stored as its distance from [`NEVER`], so that a zero node is an empty, settled one.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Node(u64);

impl Node {
    fn min(self) -> u64 {
        NEVER - (self.0 >> MIN_SHIFT)
    }

    fn is_settled(self) -> bool {
        self.0 & UNSETTLED == 0
    }

    fn changed(self, min: u64, unsettled: bool) -> Node {
        let version = (self.0 & VERSION_MASK).wrapping_add(1) & VERSION_MASK;
        Node((NEVER - min) << MIN_SHIFT | if unsettled { UNSETTLED } else { 0 } | version)
    }

    fn settled(self) -> Node {
        Node(self.0 & !UNSETTLED)
    }
}

#[derive(Default)]
struct AtomicNode(AtomicU64);

// SAFETY: a zero `AtomicU64` is its default, without drop glue.
unsafe impl ZeroInit for AtomicNode {}

impl AtomicNode {
    fn load(&self) -> Node {
        // Acquire: pairs with `exchange`: whoever sees a bump or a lowering sees the lease's word (or the
        // lower node) that it was made for.
        Node(self.0.load(Ordering::Acquire))
    }

    fn exchange(&self, seen: Node, new: Node) -> Result<(), Node> {
        // AcqRel: Release as said above. Acquire keeps the chain: a lowering that comes after a raise has
        // the raise's look behind it.
        self.0.compare_exchange(seen.0, new.0, Ordering::AcqRel, Ordering::Acquire).map(drop).map_err(Node)
    }
}

pub(crate) struct DeadlineIndex<const HEIGHT: usize = ENOUGH, const BITS: u32 = FAN> {
    levels: [Segments<AtomicNode>; HEIGHT],
}

impl<const HEIGHT: usize, const BITS: u32> DeadlineIndex<HEIGHT, BITS> {
    const ROOT: usize = HEIGHT - 1;

    pub(crate) fn new() -> Self {
        DeadlineIndex { levels: std::array::from_fn(|_| Segments::new()) }
    }

    /// Sees to it that a visit at `time` or later looks at `slot`. To be called after the lease in that
    /// slot has been published, or its word has been given an earlier time than it had.
    ///
    /// `time` is at most [`NEVER`], which asks for nothing.
    pub(crate) fn schedule(&self, slot: u32, mut time: u64) {
        if time >= NEVER {
            return;
        }
        let mut lowered: [Option<(&AtomicNode, Node)>; HEIGHT] = [None; HEIGHT];
        let mut at = slot;
        for (level, nodes) in self.levels.iter().enumerate() {
            at >>= BITS;
            let Some(node) = nodes.get_or_alloc(at) else { break };
            let mut seen = node.load();
            let (new, enough) = loop {
                let enough = seen.min() <= time && seen.is_settled();
                // Nothing is above the root.
                let new = seen.changed(seen.min().min(time), !enough && level != Self::ROOT);
                match node.exchange(seen, new) {
                    Ok(()) => break (new, enough),
                    Err(now) => seen = now,
                }
            };
            if enough {
                break;
            }
            lowered[level] = Some((node, new));
            // Not `time`: if another lowering has stalled here, the nodes above must get as low as this one,
            // or it could not be marked as settled.
            time = new.min();
        }
        // From above. If one has changed since, whoever changed it has seen it unsettled, and went on.
        for (node, new) in lowered.into_iter().rev().flatten() {
            let _ = node.exchange(new, new.settled());
        }
    }

    /// A lower bound of the times at which a sweep has something to do; [`NEVER`] if it has not.
    pub(crate) fn bound(&self) -> u64 {
        self.levels[Self::ROOT].get(0).map_or(NEVER, |root| root.load().min())
    }

    /// Looks at every slot that may have something due at `now`. `look` does what is due there and says
    /// when to look again ([`NEVER`]: not before it is scheduled).
    pub(crate) fn visit(&self, now: u64, look: &mut impl FnMut(u32) -> u64) {
        if self.bound() <= now {
            self.visit_node(Self::ROOT, 0, now, look);
        }
    }

    /// Gives the node's bound after the visit.
    fn visit_node(&self, level: usize, at: u32, now: u64, look: &mut impl FnMut(u32) -> u64) -> u64 {
        let Some(node) = self.levels[level].get(at) else { return NEVER };
        let seen = node.load();
        if seen.min() > now {
            return seen.min();
        }
        let mut min = NEVER;
        for child in 0..1u32 << BITS {
            // The highest nodes stand for more than there are slots.
            let Some(child) = at.checked_shl(BITS).filter(|up| up >> BITS == at).map(|up| up | child) else { break };
            min = min.min(match level {
                0 => look(child),
                _ => self.visit_node(level - 1, child, now, look),
            });
        }
        // A raise; an unsettled node stays so, since something above may be higher than it was, and one that is
        // lowered becomes so, since what is above is not yet lowered.
        let unsettled = (!seen.is_settled() || min < seen.min()) && level != Self::ROOT;
        match node.exchange(seen, seen.changed(min, unsettled)) {
            Ok(()) => min,
            Err(changed) => changed.min(),
        }
    }
}

#[cfg(all(test, not(kvlease_loom)))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// The index over a plain map of times, as the leases' words would be.
    #[derive(Default)]
    struct Model {
        times: BTreeMap<u32, u64>,
    }

    impl Model {
        fn due(&mut self, index: &DeadlineIndex, now: u64) -> (Vec<u32>, usize) {
            let (mut due, mut looks) = (Vec::new(), 0);
            index.visit(now, &mut |slot| {
                looks += 1;
                match self.times.get(&slot) {
                    Some(time) if *time <= now => {
                        self.times.remove(&slot);
                        due.push(slot);
                        NEVER
                    }
                    Some(time) => *time,
                    None => NEVER,
                }
            });
            due.sort_unstable();
            (due, looks)
        }
    }

    #[test]
    fn nothing_scheduled_is_never_due() {
        let index = <DeadlineIndex>::new();
        assert_eq!(index.bound(), NEVER);
        index.visit(NEVER - 1, &mut |_| panic!("nothing to look at"));
        index.schedule(5, NEVER);
        assert_eq!(index.bound(), NEVER);
    }

    #[test]
    fn what_is_due_is_found_and_nothing_else() {
        let index = <DeadlineIndex>::new();
        let mut model = Model::default();
        let mut x = 1u64;
        for slot in 0..20_000u32 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let time = x >> 40;
            model.times.insert(slot, time);
            index.schedule(slot, time);
        }
        let mut times: Vec<u64> = model.times.values().copied().collect();
        times.sort_unstable();
        for chunk in times.chunks(1_777) {
            let now = *chunk.last().unwrap();
            let expected: Vec<u32> = model.times.iter().filter(|(_, t)| **t <= now).map(|(s, _)| *s).collect();
            assert!(index.bound() <= chunk[0]);
            assert_eq!(model.due(&index, now).0, expected);
        }
        assert_eq!(index.bound(), NEVER);
    }

    #[test]
    fn a_lone_high_slot_is_found() {
        let index = <DeadlineIndex>::new();
        let slot = 1 << 24;
        // The segment of so high a number is large, but untouched pages cost nothing (Miri touches them).
        if cfg!(miri) {
            return;
        }
        index.schedule(slot, 7);
        let mut found = Vec::new();
        index.visit(7, &mut |slot| {
            found.push(slot);
            NEVER
        });
        assert!(found.contains(&slot));
        assert_eq!(index.bound(), NEVER);
    }

    #[test]
    fn a_visit_looks_at_what_is_due_and_its_neighbours_only() {
        let index = <DeadlineIndex>::new();
        let mut model = Model::default();
        for slot in 0..100_000u32 {
            let time = if slot == 777 { 10 } else { 1_000 + u64::from(slot) };
            model.times.insert(slot, time);
            index.schedule(slot, time);
        }
        assert_eq!(model.due(&index, 9), (vec![], 0));
        assert_eq!(model.due(&index, 10), (vec![777], 1 << FAN));
        assert_eq!(index.bound(), 1_000);
        assert_eq!(model.due(&index, 999), (vec![], 0));
    }

    #[test]
    fn a_renewed_entry_is_put_back_at_its_true_time() {
        let index = <DeadlineIndex>::new();
        let mut model = Model::default();
        model.times.insert(3, 10);
        index.schedule(3, 10);
        model.times.insert(3, 50); // renewed: the index is not told
        assert_eq!(model.due(&index, 10).0, vec![]);
        assert_eq!(index.bound(), 50);
        assert_eq!(model.due(&index, 50).0, vec![3]);
    }

    #[test]
    fn a_stalled_lowering_hides_nothing_from_others() {
        let index = <DeadlineIndex>::new();
        index.schedule(1, 100);
        // A `schedule(1, 50)` that has lowered level 0, and stalls.
        let node = index.levels[0].get(0).unwrap();
        let seen = node.load();
        assert!(node.exchange(seen, seen.changed(50, true)).is_ok());
        assert_eq!(index.bound(), 100);
        // Another one in the same node, with a later time, settles it: then all above must be as low.
        index.schedule(2, 70);
        assert!(node.load().is_settled());
        assert_eq!(index.bound(), 50);
        // So that a third may rely on it.
        index.schedule(3, 55);
        assert_eq!(index.bound(), 50);
    }

    #[test]
    fn a_visit_half_way_up_hides_nothing_from_others() {
        let index = <DeadlineIndex>::new();
        let far = 1 << (2 * FAN);
        index.schedule(1, 6);
        index.schedule(far, 6);
        let mut met = 0;
        index.visit(6, &mut |slot| {
            if slot == (1 << FAN) - 1 {
                // After the look at slot 0: a `schedule(0, 5)` that has lowered level 0, and stalls. The visit
                // takes its time up with it.
                let node = index.levels[0].get(0).unwrap();
                let seen = node.load();
                assert!(node.exchange(seen, seen.changed(5, true)).is_ok());
                met += 1;
            } else if slot == far {
                // The visit has been at the two lowest nodes over slot 0, and not at those above.
                index.schedule(0, 5);
                assert!(index.bound() <= 5, "scheduled, and not to be found");
                met += 1;
            }
            NEVER
        });
        assert_eq!(met, 2);
        assert!(index.bound() <= 5);
    }

    #[test]
    fn an_earlier_time_takes_effect_at_once() {
        let index = <DeadlineIndex>::new();
        let mut model = Model::default();
        model.times.insert(3, 100);
        index.schedule(3, 100);
        model.times.insert(3, 20);
        index.schedule(3, 20);
        assert_eq!(index.bound(), 20);
        assert_eq!(model.due(&index, 20).0, vec![3]);
    }
}
