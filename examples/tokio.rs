//! A prefill worker on a tokio runtime: tasks that take messages, sweep, and push blocks.
//!
//! ```sh
//! cargo run --example tokio
//! ```
//!
//! ```text
//!   requests ─ track ──▶ tracker ◀── notify, renew ── messages (a channel stands for the transport)
//!   pushes ─ begin, end ──▶ │ ◀── sweep, next_deadline ── sweeper
//!                           ▼
//!                    releases (a channel) ──▶ the owner of the blocks
//! ```
//!
//! No call of the tracker waits, so all are made right in the tasks. The runtime has one thread and its clock is paused
//! (it jumps to the next timer when all tasks wait), so half a minute passes in no time.

use kvlease::wire::{self, Message};
use kvlease::{ConsumerId, Outcome, Release, SendTracker, Terms, Timestamp};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep};

const LEASE: Duration = Duration::from_secs(30);
/// The sweeper looks up at least this often.
const LONGEST: Duration = Duration::from_secs(60);

type Blocks = Vec<u32>;

/// What all tasks share.
struct Prefill {
    tracker: Arc<SendTracker<Blocks>>,
    /// The epoch of the tracker's clock. Tokio's, so that it stands still when tokio's does; without a reason like this,
    /// use `kvlease::Clock`.
    began: Instant,
    /// Wakes the sweeper: a lease has begun, or a transfer has ended, of which it does not know yet.
    wake: Notify,
    /// To the owner of the blocks.
    freed: mpsc::UnboundedSender<Release<Blocks>>,
}

impl Prefill {
    fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.began.elapsed()
    }

    fn free(&self, release: impl IntoIterator<Item = Release<Blocks>>) {
        for release in release {
            // Fails if the owner is gone, and then nobody needs the blocks any more.
            _ = self.freed.send(release);
        }
    }

    fn track(&self, id: &str, blocks: Blocks) {
        let now = self.now();
        match self.tracker.track(id, Terms::until(now + LEASE).consumers(1), blocks, now) {
            Ok(tracked) => self.free(tracked.release()),
            Err(refused) => println!("{id} is refused ({}), blocks {:?} are free", refused.reason, refused.payload),
        }
        self.wake.notify_one();
    }

    /// Takes messages until their channel closes.
    async fn messages(&self, mut inbox: mpsc::Receiver<(ConsumerId, Vec<u8>)>) {
        while let Some((consumer, bytes)) = inbox.recv().await {
            let now = self.now();
            match wire::parse(&bytes) {
                Ok(Message::Completion(done)) => {
                    self.free(self.tracker.notify_expecting(done.id, consumer, done.expected, now).release());
                }
                Ok(Message::Heartbeat(heartbeat)) => {
                    _ = self.tracker.renew_batch(heartbeat.ids(), now + LEASE, Some(consumer), now);
                }
                Ok(_) => {}
                Err(malformed) => println!("malformed: {malformed}"),
            }
        }
    }

    /// Ends what is due, when it is.
    async fn sweeper(&self, mut stop: watch::Receiver<bool>) {
        loop {
            let now = self.now();
            self.free(self.tracker.sweep(now).released);
            let idle = self.tracker.next_deadline().map_or(LONGEST, |next| (next - now).min(LONGEST));
            tokio::select! {
                () = sleep(idle) => {}
                // Notified while we did not wait: it is there at once.
                () = self.wake.notified() => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// Pushes the blocks of a request. Should this task be cancelled, the guard of the transfer is dropped, and the
    /// sweeper frees the blocks if their lease has ended meanwhile.
    async fn push(&self, id: &str, takes: Duration) {
        // Dropped last, cancelled or not: what a dropped transfer leaves behind is due at once.
        let _wake = WakeOnDrop(&self.wake);
        match self.tracker.begin_transfer_owned(id) {
            Ok(transfer) => {
                sleep(takes).await; // the transfer itself
                self.free(transfer.end(self.now()));
            }
            Err(refused) => println!("{id}: {refused}"),
        }
    }
}

struct WakeOnDrop<'a>(&'a Notify);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let (freed, mut releases) = mpsc::unbounded_channel();
    let prefill =
        Arc::new(Prefill { tracker: Arc::new(SendTracker::new()), began: Instant::now(), wake: Notify::new(), freed });
    let (to_prefill, inbox) = mpsc::channel(1_024);
    let (stop, stopped) = watch::channel(false);
    let messages = tokio::spawn({
        let prefill = Arc::clone(&prefill);
        async move { prefill.messages(inbox).await }
    });
    let sweeper = tokio::spawn({
        let prefill = Arc::clone(&prefill);
        async move { prefill.sweeper(stopped).await }
    });

    let rank = ConsumerId::new(1).expect("in range");
    for (n, id) in ["read", "waits", "lost", "pushed", "cancelled"].into_iter().enumerate() {
        prefill.track(id, vec![n as u32]);
    }
    let push = |id: &'static str, secs| {
        let prefill = Arc::clone(&prefill);
        tokio::spawn(async move { prefill.push(id, Duration::from_secs(secs)).await })
    };
    // Longer than the leases.
    let pushed = push("pushed", 45);
    let cancelled = push("cancelled", 1_000);

    // The decode side.
    let send = |message: &'static [u8]| to_prefill.send((rank, message.to_vec()));
    sleep(Duration::from_secs(5)).await;
    send(b"read:1").await.expect("the other side is there");
    sleep(Duration::from_secs(20)).await;
    send(b"HB:waits").await.expect("the other side is there");
    sleep(Duration::from_secs(15)).await;
    cancelled.abort();
    sleep(Duration::from_secs(10)).await;
    send(b"waits:1").await.expect("the other side is there");

    // The end: first those that may still bring something, then what is left.
    pushed.await.expect("it has not been cancelled");
    drop(to_prefill);
    messages.await.expect("it has not been cancelled");
    stop.send(true).expect("the sweeper listens");
    sweeper.await.expect("it has not been cancelled");
    prefill.free(prefill.tracker.sweep(prefill.now()).released);
    prefill.free(prefill.tracker.shutdown(prefill.now()));
    drop(prefill);

    let mut ended = BTreeMap::new();
    while let Some(release) = releases.recv().await {
        println!("{} {} after {:?}: blocks {:?} are free", release.id, release.outcome, release.age, release.payload);
        ended.insert(release.id.to_string(), (release.outcome, release.age.as_secs()));
    }
    let expected = [
        ("cancelled", (Outcome::Expired, 40)),
        ("lost", (Outcome::Expired, 30)),
        ("pushed", (Outcome::Expired, 45)),
        ("read", (Outcome::Completed, 5)),
        ("waits", (Outcome::Completed, 50)),
    ];
    assert!(ended.iter().map(|(id, end)| (id.as_str(), *end)).eq(expected), "{ended:?}");
}
