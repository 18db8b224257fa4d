//! One map behind a mutex, and a heap of deadlines: a renewal pushes another one, and what comes to the top is
//! checked against the map.

use super::scan::{Lease, Leases, complete};
use super::{Completion, Tracker, ids};
use kvlease::Timestamp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub struct Heap(Mutex<State>);

#[derive(Default)]
struct State {
    leases: Leases,
    deadlines: BinaryHeap<Reverse<(Timestamp, Box<str>)>>,
}

impl Heap {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tracker for Heap {
    fn track(&self, id: &str, consumers: u32, deadline: Timestamp, payload: u64, _: Timestamp) {
        let mut state = self.lock();
        assert!(state.leases.insert(id.into(), Lease::new(consumers, deadline, payload)).is_none());
        state.deadlines.push(Reverse((deadline, id.into())));
    }

    fn complete(&self, messages: &[Completion<'_>], _: Timestamp) -> usize {
        complete(&mut self.lock().leases, messages)
    }

    fn heartbeat(&self, message: &[u8], deadline: Timestamp, _: Timestamp) -> usize {
        let mut state = self.lock();
        let mut renewed = 0;
        for id in ids(message) {
            if let Some(lease) = state.leases.get_mut(id).filter(|lease| lease.deadline < deadline) {
                lease.deadline = deadline;
                state.deadlines.push(Reverse((deadline, id.into())));
                renewed += 1;
            }
        }
        renewed
    }

    fn sweep(&self, now: Timestamp) -> usize {
        let mut state = self.lock();
        let mut ended = 0;
        while state.deadlines.peek().is_some_and(|Reverse((deadline, _))| *deadline <= now) {
            let Some(Reverse((_, id))) = state.deadlines.pop() else { break };
            if state.leases.get(&id).is_some_and(|lease| lease.deadline <= now) {
                state.leases.remove(&id);
                ended += 1;
            }
        }
        ended
    }

    fn live(&self) -> usize {
        self.lock().leases.len()
    }
}
