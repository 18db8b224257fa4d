//! Runs a model: several roles, each on a thread of its own, in every interleaving that loom explores, in two
//! passes; and keeps the books for the table in the README.
//!
//! What a run guarantees beyond loom's own `model`:
//!
//! * It ends because everything has been explored, never because of a limit: no limit is set, and the
//!   variables by which loom takes limits from the environment make it refuse to run.
//! * The outcomes of all executions are collected. A model whose set of outcomes is known asserts it: to
//!   assert only that nothing bad happens would not tell exploration from none.
//! * Every payload, key and value that was made has been dropped once at the end of each execution, and
//!   nothing was retired twice, or used after it was reclaimed (see `reclaim_loom.rs`).

use crate::reclaim;
use crate::sync::control::{self, Phase, StartAgain};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// How loads are explored; see `sync_loom.rs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pass {
    /// As exchanges that fail: every sequentially consistent interleaving.
    Dense,
    /// As loads, which may be stale; the roles dealt out to the threads in turn.
    Weak,
}

/// A role: what one thread does. Gives what it was answered.
pub(crate) type Role<S, R> = fn(&'static S) -> R;

type Setup<S> = Arc<dyn Fn() -> S + Send + Sync>;

pub(crate) struct Model {
    name: &'static str,
    invariants: &'static str,
    bound: Option<usize>,
    reuse: bool,
    expected: Option<BTreeSet<String>>,
}

impl Model {
    /// A model that checks these of the crate's invariants (I1 to I11), or of the map's promises.
    pub(crate) fn new(name: &'static str, invariants: &'static str) -> Self {
        Model { name, invariants, bound: None, reuse: false, expected: None }
    }

    /// With at most this many preemptions; the weak pass, which has more to explore, with one less.
    ///
    /// `KVLEASE_LOOM_DEEP=N` allows N more, for a run by hand, and `KVLEASE_LOOM_DEEP=all` any number.
    pub(crate) fn bound(mut self, preemptions: usize) -> Self {
        self.bound = match std::env::var("KVLEASE_LOOM_DEEP").as_deref() {
            Ok("all") => None,
            Ok(more) => Some(preemptions + more.parse::<usize>().expect("a number, or all")),
            Err(_) => Some(preemptions),
        };
        self
    }

    /// What is retired is used again as soon as the contract of the guards allows.
    pub(crate) fn reuse(mut self) -> Self {
        self.reuse = true;
        self
    }

    /// The outcomes are these, all of them and no other.
    pub(crate) fn expect(mut self, outcomes: BTreeSet<String>) -> Self {
        self.expected = Some(outcomes);
        self
    }

    /// Runs both passes (or that which `KVLEASE_LOOM_PASS` names, for a run by hand). `finish` is given what each role was answered, in the order of `roles`, when all
    /// have ended; it asserts what must hold then, and names the outcome.
    pub(crate) fn run<S: Send + Sync + 'static, R: Send + 'static>(
        self,
        setup: impl Fn() -> S + Send + Sync + 'static,
        roles: &[Role<S, R>],
        finish: fn(&'static S, Vec<R>) -> String,
    ) {
        refuse_limits();
        let setup: Setup<S> = Arc::new(setup);
        let only = std::env::var("KVLEASE_LOOM_PASS");
        if only.as_deref() != Ok("weak") {
            let dense = self.pass(Pass::Dense, &setup, roles, finish);
            if let Some(expected) = &self.expected {
                assert_same(self.name, expected, &dense);
            }
        }
        if only.as_deref() != Ok("dense") {
            let weak = self.pass(Pass::Weak, &setup, roles, finish);
            if let Some(expected) = &self.expected {
                let alien: Vec<_> = weak.difference(expected).collect();
                assert!(alien.is_empty(), "{}: the weak pass has outcomes of its own: {alien:#?}", self.name);
            }
        }
    }

    fn pass<S: Send + Sync + 'static, R: Send + 'static>(
        &self,
        pass: Pass,
        setup: &Setup<S>,
        roles: &[Role<S, R>],
        finish: fn(&'static S, Vec<R>) -> String,
    ) -> BTreeSet<String> {
        let start = Instant::now();
        let bound = self.bound.map(|bound| if pass == Pass::Dense { bound } else { bound - 1 });
        let mut executions = 0;
        let mut outcomes = BTreeSet::new();
        // In the weak pass each role is once the first, once the last, and so on.
        let orders = if pass == Pass::Dense { 1 } else { roles.len() };
        for first in 0..orders {
            let order = (0..roles.len()).map(|i| (first + i) % roles.len()).collect();
            let one = Arc::new(Exploration {
                dense: pass == Pass::Dense,
                reuse: self.reuse,
                bound,
                setup: Arc::clone(setup),
                roles: roles.to_vec(),
                order,
                finish,
                executions: AtomicU64::new(0),
                outcomes: Mutex::default(),
            });
            one.explore();
            executions += one.executions.load(Relaxed);
            outcomes.extend(std::mem::take(&mut *one.outcomes.lock().unwrap()));
        }
        let seconds = start.elapsed().as_secs_f64();
        self.record(pass, roles.len(), bound, executions, outcomes.len(), seconds);
        outcomes
    }

    fn record(&self, pass: Pass, threads: usize, bound: Option<usize>, executions: u64, outcomes: usize, seconds: f64) {
        let mut line = String::new();
        let bound = bound.map_or("none".into(), |n| n.to_string());
        let pass = format!("{pass:?}").to_lowercase();
        let reuse = if self.reuse { ", reuse" } else { "" };
        let _ = write!(
            line,
            "| {}{reuse} | {threads} | {} | {pass} | {bound} | {executions} | {outcomes} | {seconds:.1} |",
            self.name, self.invariants
        );
        println!("{line}");
        let file =
            format!("{}{reuse}.{pass}", self.name).replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
        let records = records();
        std::fs::create_dir_all(&records).unwrap();
        std::fs::write(records.join(file), line).unwrap();
    }
}

/// Where the lines of the table are put, beside the build.
pub(crate) fn records() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().nth(3).unwrap().join("loom-records")
}

/// A run that somebody limited would end early, and as a success.
fn refuse_limits() {
    let set: Vec<_> = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOOM_")).collect();
    assert!(set.is_empty(), "unset {set:?}: a model must end by itself");
}

pub(crate) fn assert_same(name: &str, expected: &BTreeSet<String>, found: &BTreeSet<String>) {
    let missing: Vec<_> = expected.difference(found).collect();
    let alien: Vec<_> = found.difference(expected).collect();
    assert!(
        missing.is_empty() && alien.is_empty(),
        "{name}: {} outcomes expected, {} found; missing {missing:#?}; unexpected {alien:#?}",
        expected.len(),
        found.len()
    );
}

struct Exploration<S: 'static, R> {
    dense: bool,
    reuse: bool,
    bound: Option<usize>,
    setup: Setup<S>,
    roles: Vec<Role<S, R>>,
    order: Vec<usize>,
    finish: fn(&'static S, Vec<R>) -> String,
    executions: AtomicU64,
    outcomes: Mutex<BTreeSet<String>>,
}

impl<S: Send + Sync + 'static, R: Send + 'static> Exploration<S, R> {
    /// Explores everything, as often as it takes until it is known which words are written.
    fn explore(self: &Arc<Self>) {
        control::forget_written();
        loop {
            // A limited look around, in which nothing is decided but which words are written.
            loop {
                self.check(Phase::Discovering, Some(2_000));
                control::apply_discovered();
                if !control::take_grown() {
                    break;
                }
            }
            self.executions.store(0, Relaxed);
            self.outcomes.lock().unwrap().clear();
            match catch_unwind(AssertUnwindSafe(|| self.check(Phase::Exploring, None))) {
                Ok(()) => {
                    assert!(!control::take_grown());
                    return;
                }
                Err(panic) if panic.is::<StartAgain>() => {
                    control::take_grown();
                }
                Err(panic) => resume_unwind(panic),
            }
        }
    }

    fn check(self: &Arc<Self>, phase: Phase, limit: Option<usize>) {
        let mut builder = loom::model::Builder::new();
        builder.max_threads = 5;
        builder.max_branches = 100_000;
        builder.preemption_bound = self.bound;
        builder.max_duration = None;
        builder.max_permutations = limit;
        builder.checkpoint_interval = if limit.is_some() { 100 } else { usize::MAX };
        builder.checkpoint_file = None;
        builder.log = false;
        let this = Arc::clone(self);
        builder.check(move || this.execute(phase));
    }

    /// One execution.
    fn execute(&self, phase: Phase) {
        control::begin(self.dense);
        reclaim::begin(self.reuse);
        LEDGER.set(Ledger::default());
        let state: *mut S = Box::into_raw(Box::new((self.setup)()));
        // SAFETY: freed below, when every role has ended.
        let shared: &'static S = unsafe { &*state };
        control::set_phase(phase);
        let main = loom::thread::current();
        let answers: Arc<Mutex<Vec<Option<R>>>> = Arc::new(Mutex::new(self.roles.iter().map(|_| None).collect()));
        for &number in &self.order {
            let (role, main, answers) = (self.roles[number], main.clone(), Arc::clone(&answers));
            let play = move || {
                control::set_role(number + 1);
                let answer = role(shared);
                answers.lock().unwrap()[number] = Some(answer);
                main.unpark();
            };
            loom::thread::Builder::new().stack_size(0x2000).spawn(play).unwrap();
        }
        // The main thread only waits. To join would double the executions for each thread; to unpark is no
        // scheduling point, but makes the edge. (It would make it too early for a main thread with a role.)
        while answers.lock().unwrap().iter().any(Option::is_none) {
            loom::thread::park();
        }
        control::set_phase(Phase::Alone);
        let answers = answers.lock().unwrap().drain(..).map(Option::unwrap).collect();
        let outcome = (self.finish)(shared, answers);
        // SAFETY: made above; nobody borrows it any more.
        drop(unsafe { Box::from_raw(state) });
        reclaim::bury_all();
        let ledger = LEDGER.get();
        assert_eq!(ledger.made, ledger.dropped, "what was made is dropped once");
        let executions = self.executions.fetch_add(1, Relaxed) + 1;
        if executions % 10_000 == 0 && std::env::var_os("KVLEASE_LOOM_PROGRESS").is_some() {
            println!("{phase:?} {:?}: {executions} executions", self.order);
        }
        let mut outcomes = self.outcomes.lock().unwrap();
        if !outcomes.contains(&outcome) {
            outcomes.insert(outcome);
        }
    }
}

#[derive(Clone, Copy, Default, Debug)]
struct Ledger {
    made: u32,
    dropped: u32,
}

thread_local!(static LEDGER: Cell<Ledger> = const { Cell::new(Ledger { made: 0, dropped: 0 }) });

/// A thing that must be dropped once, and that only its owner may touch: a payload, a key, a value.
pub(crate) struct Owned<T> {
    pub(crate) what: T,
    cell: crate::sync::UnsafeCell<u32>,
}

// SAFETY: every access to the cell is checked by loom.
unsafe impl<T: Sync> Sync for Owned<T> {}

impl<T> Owned<T> {
    pub(crate) fn new(what: T) -> Self {
        LEDGER.set(Ledger { made: LEDGER.get().made + 1, ..LEDGER.get() });
        Owned { what, cell: crate::sync::UnsafeCell::new(0) }
    }

    /// Looks at it, as any number of threads may at the same time.
    pub(crate) fn read(&self) {
        // SAFETY: a `u32` that is there; loom reports a race with `own`.
        self.cell.with(|cell| unsafe { assert_eq!(*cell, 0) });
    }

    /// Uses it as only its owner may.
    pub(crate) fn own(&self) {
        self.cell.with_mut(|_| ());
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.own();
            LEDGER.set(Ledger { dropped: LEDGER.get().dropped + 1, ..LEDGER.get() });
        }
    }
}

impl<T: Debug> Debug for Owned<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.what.fmt(f)
    }
}
