//! How notifications travel: one trait to receive, one to send.
//!
//! They ask for no more than NIXL gives, and promise no more. Messages may be lost, come twice, come
//! late or out of order; the name of the sender is what the sender says it is. A lease copes with all
//! of that, so nothing here tries to repair it.
//!
//! [`in_process`] has an implementation for tests and examples, with these faults on demand. With feature
//! `nixl`, `nixl` has one over the real library. [`Pump`](crate::Pump) brings what a source has to the tracker.

pub mod in_process;
#[cfg(feature = "nixl")]
pub mod nixl;

use thiserror::Error;

/// Where messages from other agents arrive.
///
/// ```
/// use kvlease::transport::{NotificationSource, TransportError};
/// use kvlease::wire::{self, Message};
///
/// /// One poll of a connector: how many messages were not understood.
/// fn step(source: &mut dyn NotificationSource) -> Result<usize, TransportError> {
///     let mut malformed = 0;
///     source.poll(&mut |agent, bytes| match wire::parse(bytes) {
///         Ok(Message::Completion(done)) => println!("{agent} has read {}", done.id),
///         Ok(_) => {}
///         Err(_) => malformed += 1,
///     })?;
///     Ok(malformed)
/// }
/// # let _ = step;
/// ```
pub trait NotificationSource {
    /// Hands each message that has arrived to `on(agent, bytes)`, in order of arrival; returns how many.
    ///
    /// Each message is handed out once. It does not wait for messages.
    ///
    /// # Errors
    ///
    /// [`TransportError`] if the transport itself fails; what was handed to `on` before counts.
    fn poll(&mut self, on: &mut dyn FnMut(&str, &[u8])) -> Result<usize, TransportError>;
}

/// Where messages to other agents leave; shared by the threads that send.
pub trait NotificationSink {
    /// Sends `message` to the agent of this name. `Ok` means queued, not delivered.
    ///
    /// # Errors
    ///
    /// [`TransportError`] if the message cannot be queued. It is then lost; where it is a completion the
    /// lease at the receiver runs out instead.
    fn send(&self, agent: &str, message: &[u8]) -> Result<(), TransportError>;
}

/// Why a message cannot be sent, or messages not be received.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// No agent of this name can be reached: it never was, or has gone.
    #[error("agent {name:?} is not known or has gone; connect to it again")]
    UnknownAgent {
        /// The name that was asked for.
        name: String,
    },
    /// This side has been closed.
    #[error("this agent has been closed; make a new one")]
    Closed,
    /// What the library underneath says.
    #[error("the transport failed: {0}")]
    Backend(String),
}
