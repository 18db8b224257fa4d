//! Names of remote agents as small numbers, and what was agreed with them.

use crate::ConsumerId;
use crate::map::{CasMap, InsertError, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use thiserror::Error;

/// Gives each agent name a [`ConsumerId`], from any number of threads.
///
/// What it guarantees:
///
/// - One name has one id as long as it is remembered, whichever threads ask.
/// - **An id is given out once.** No two names ever have the same one, not even one after the other:
///   an agent that was [forgotten](Self::forget) and comes back is a new consumer.
/// - It is bounded, in the number of names and in the length of each. Names come from peers and are
///   self-declared; past the bounds they are refused.
///
/// - **Nobody is sent what it has not asked for**: whether an agent takes [stale replies](crate::wire::StaleReply)
///   is what [`handshake`](Self::handshake) was told, and no until then, or once it was forgotten.
///
/// All calls are lock-free; to look up a name that is known writes nothing. Each name is stored once.
///
/// ```
/// use kvlease::ConsumerRegistry;
///
/// let agents = ConsumerRegistry::new();
/// let a = agents.intern("decode-0")?;
/// assert_eq!(agents.intern("decode-0")?, a);
/// assert_eq!(agents.name_of(a).as_deref(), Some("decode-0"));
///
/// assert_eq!(agents.forget("decode-0"), Some(a));
/// assert_ne!(agents.intern("decode-0")?, a);
/// # Ok::<(), kvlease::InternError>(())
/// ```
pub struct ConsumerRegistry {
    /// Decides: an id is a name's from its insertion here to its removal.
    ids: CasMap<Arc<str>, ConsumerId>,
    /// Written before `ids` and removed after, so an id that was given out has its name here.
    names: CasMap<ConsumerId, Agent>,
    /// How many names have a place; counted apart, so that two threads cannot both take the last one.
    len: AtomicUsize,
    /// The next id; stays at the end of its range.
    next: AtomicU32,
    capacity: usize,
    max_name_len: usize,
}

/// What is known of an id.
#[derive(Clone)]
struct Agent {
    name: Arc<str>,
    /// `None` before the handshake.
    replies: Option<Replies>,
}

/// Which [replies](crate::wire::StaleReply) to its completions an agent takes. To be agreed on at the handshake: one
/// that does not know them may crash on them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Replies {
    /// None at all: a plain peer.
    #[default]
    None,
    /// That what it read was stale. For an agent that uses what it has read at once.
    Stale,
    /// Also that what it read was not. For an agent that waits for the verdict
    /// ([`ReadConfig::verdict_wait`](crate::consumer::ReadConfig::verdict_wait)).
    All,
}

/// Why a name was given no id.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum InternError {
    /// As many names are remembered as may be.
    #[error("{capacity} agents are known, which is the limit; forget those that are gone")]
    Full {
        /// The limit.
        capacity: usize,
    },
    /// The name is too long.
    #[error("the agent name has {len} bytes, the limit is {max}")]
    NameTooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// All ids, more than two billion, have been given out.
    #[error("all consumer ids have been given out; make a new registry and a new tracker")]
    IdsExhausted,
}

impl ConsumerRegistry {
    /// A registry of up to 65,536 names of up to 1,024 bytes each.
    pub fn new() -> Self {
        Self::with_limits(1 << 16, 1 << 10)
    }

    /// A registry of up to `capacity` names of up to `max_name_len` bytes each.
    pub fn with_limits(capacity: usize, max_name_len: usize) -> Self {
        ConsumerRegistry {
            ids: CasMap::new(),
            names: CasMap::new(),
            len: AtomicUsize::new(0),
            next: AtomicU32::new(1),
            capacity,
            max_name_len,
        }
    }

    /// The id of this name, a new one if the name is not known.
    ///
    /// # Errors
    ///
    /// [`InternError`] if the name is not known and cannot be remembered. When two threads intern one new
    /// name at the same moment, and there is one place left, one of them may be told that there is none.
    pub fn intern(&self, name: &str) -> Result<ConsumerId, InternError> {
        if let Some(id) = self.get(name) {
            return Ok(id);
        }
        if name.len() > self.max_name_len {
            return Err(InternError::NameTooLong { len: name.len(), max: self.max_name_len });
        }
        self.take_place()?;
        let Some(id) = self.take_id() else {
            self.len.fetch_sub(1, Ordering::Relaxed);
            return Err(InternError::IdsExhausted);
        };
        let guard = pin();
        let name: Arc<str> = Arc::from(name);
        // Cannot be there yet: nobody else has this id.
        let _ = self.names.insert(id, Agent { name: Arc::clone(&name), replies: None }, &guard);
        match self.ids.insert(name, id, &guard) {
            Ok(_) => Ok(id),
            Err(refused) => {
                // Another thread was faster. Our id was never given out, and never will be.
                self.names.remove(&id, &guard);
                self.len.fetch_sub(1, Ordering::Relaxed);
                match refused {
                    InsertError::Exists { entry, .. } => Ok(*entry.value()),
                    InsertError::Full { .. } => Err(InternError::Full { capacity: self.capacity }),
                }
            }
        }
    }

    /// The id of this name, if it is known.
    pub fn get(&self, name: &str) -> Option<ConsumerId> {
        self.ids.get(name, &pin()).map(|entry| *entry.value())
    }

    /// The name that has this id, unless it was forgotten.
    pub fn name_of(&self, id: ConsumerId) -> Option<Arc<str>> {
        self.names.get(&id, &pin()).map(|entry| Arc::clone(&entry.value().name))
    }

    /// The id of this name, a new one if the name is not known, and from now on the agent gets these replies.
    ///
    /// May be called again, with another answer. An agent that was forgotten has to shake hands again.
    ///
    /// # Errors
    ///
    /// As for [`intern`](Self::intern).
    ///
    /// ```
    /// use kvlease::{ConsumerRegistry, Replies};
    ///
    /// let agents = ConsumerRegistry::new();
    /// let plain = agents.intern("decode-0")?;
    /// let asks = agents.handshake("decode-1", Replies::Stale)?;
    /// assert_eq!((agents.replies(plain), agents.replies(asks)), (Replies::None, Replies::Stale));
    /// # Ok::<(), kvlease::InternError>(())
    /// ```
    pub fn handshake(&self, name: &str, replies: Replies) -> Result<ConsumerId, InternError> {
        let id = self.intern(name)?;
        let guard = pin();
        if let Some(known) = self.names.get(&id, &guard) {
            // Fails if the agent is forgotten at this moment; then it is as if it had been forgotten right after.
            let agent = Agent { name: Arc::clone(&known.value().name), replies: Some(replies) };
            let _ = self.names.replace_if(&id, agent, |_| true, &guard);
        }
        Ok(id)
    }

    /// Which replies this agent takes: none, unless it said so at its handshake.
    pub fn replies(&self, id: ConsumerId) -> Replies {
        self.names.get(&id, &pin()).and_then(|entry| entry.value().replies).unwrap_or_default()
    }

    /// Whether there was a handshake with this agent.
    pub(crate) fn has_shaken_hands(&self, id: ConsumerId) -> bool {
        self.names.get(&id, &pin()).is_some_and(|entry| entry.value().replies.is_some())
    }

    /// Forgets an agent that is gone, and says which id it had.
    ///
    /// To tell the tracker that the agent is dead is another matter:
    /// [`SendTracker::expire_consumers`](crate::SendTracker::expire_consumers).
    pub fn forget(&self, name: &str) -> Option<ConsumerId> {
        let guard = pin();
        let id = *self.ids.remove(name, &guard)?.value();
        self.names.remove(&id, &guard);
        self.len.fetch_sub(1, Ordering::Relaxed);
        Some(id)
    }

    /// How many names are remembered.
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether no name is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn take_place(&self) -> Result<(), InternError> {
        self.len
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |len| (len < self.capacity).then_some(len + 1))
            .map(drop)
            .map_err(|_| InternError::Full { capacity: self.capacity })
    }

    fn take_id(&self) -> Option<ConsumerId> {
        let taken = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next <= ConsumerId::MAX).then_some(next + 1));
        ConsumerId::new(taken.ok()?)
    }
}

impl Default for ConsumerRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ConsumerRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConsumerRegistry").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashMap as StdMap};

    #[test]
    fn a_full_registry_refuses_new_names_and_knows_the_old() {
        let agents = ConsumerRegistry::with_limits(2, 8);
        let a = agents.intern("a").unwrap();
        agents.intern("b").unwrap();
        assert_eq!(agents.intern("c"), Err(InternError::Full { capacity: 2 }));
        assert_eq!(agents.intern("a"), Ok(a));
        assert_eq!((agents.len(), agents.get("c")), (2, None));

        assert_eq!(agents.forget("a"), Some(a));
        assert_eq!(agents.forget("a"), None);
        assert_eq!((agents.len(), agents.name_of(a)), (1, None));
        let c = agents.intern("c").unwrap();
        assert_ne!(c, a);
        assert_eq!(agents.name_of(c).as_deref(), Some("c"));
    }

    #[test]
    fn what_was_agreed_at_the_handshake_holds_until_the_agent_is_forgotten() {
        let agents = ConsumerRegistry::with_limits(2, 8);
        let a = agents.intern("a").unwrap();
        assert_eq!((agents.replies(a), agents.has_shaken_hands(a)), (Replies::None, false));
        assert_eq!(agents.handshake("a", Replies::None), Ok(a));
        assert!(agents.has_shaken_hands(a));
        assert_eq!(agents.handshake("a", Replies::All), Ok(a));
        assert_eq!((agents.replies(a), agents.name_of(a).as_deref()), (Replies::All, Some("a")));
        let b = agents.handshake("b", Replies::Stale).unwrap();
        assert_eq!(agents.handshake("c", Replies::All), Err(InternError::Full { capacity: 2 }));

        agents.forget("a");
        assert_eq!((agents.replies(a), agents.replies(b)), (Replies::None, Replies::Stale));
        let again = agents.intern("a").unwrap();
        assert_eq!((agents.replies(again), agents.has_shaken_hands(again)), (Replies::None, false));
        assert_eq!(agents.names.len(), 2);
    }

    #[test]
    fn a_long_name_is_refused_and_not_cut() {
        let agents = ConsumerRegistry::with_limits(2, 8);
        assert_eq!(agents.intern("123456789"), Err(InternError::NameTooLong { len: 9, max: 8 }));
        assert!(agents.is_empty());
        agents.intern("12345678").unwrap();
    }

    #[test]
    fn when_the_ids_run_out_none_is_given_twice() {
        let agents = ConsumerRegistry::new();
        agents.next.store(ConsumerId::MAX, Ordering::Relaxed);
        let last = agents.intern("a").unwrap();
        assert_eq!(agents.intern("b"), Err(InternError::IdsExhausted));
        assert_eq!(agents.intern("b"), Err(InternError::IdsExhausted));
        assert_eq!(agents.intern("a"), Ok(last));
        assert_eq!(agents.len(), 1);
    }

    #[test]
    fn no_two_names_ever_have_one_id_whichever_threads_ask() {
        const NAMES: u32 = 40;
        const CAPACITY: usize = 30;
        let agents = ConsumerRegistry::with_limits(CAPACITY, 64);
        let rounds = if cfg!(miri) { 2 } else { 200 };
        let seen: Vec<Vec<(u32, ConsumerId)>> = std::thread::scope(|s| {
            let threads: Vec<_> = (0..4)
                .map(|t| {
                    let agents = &agents;
                    s.spawn(move || {
                        let mut seen = Vec::new();
                        for round in 0..rounds {
                            for n in 0..NAMES {
                                let name = format!("agent-{n}");
                                if let Ok(id) = agents.intern(&name) {
                                    seen.push((n, id));
                                    if let Some(known) = agents.name_of(id) {
                                        assert_eq!(*known, *name);
                                    }
                                }
                                if (n + round + t) % 7 == 0 {
                                    if let Some(id) = agents.forget(&name) {
                                        seen.push((n, id));
                                    }
                                }
                                assert!(agents.len() <= CAPACITY);
                            }
                        }
                        seen
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });

        let mut owner = StdMap::new();
        for (n, id) in seen.into_iter().flatten() {
            assert_eq!(*owner.entry(id).or_insert(n), n, "{id} was given to two names");
        }
        // The two maps agree at rest.
        let mut left = BTreeSet::new();
        for n in 0..NAMES {
            if let Some(id) = agents.get(&format!("agent-{n}")) {
                assert_eq!(*agents.name_of(id).unwrap(), *format!("agent-{n}"));
                left.insert(id);
            }
        }
        assert_eq!((left.len(), agents.names.len()), (agents.len(), agents.len()));
    }
}
