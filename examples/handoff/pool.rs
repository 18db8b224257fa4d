//! The KV-cache block pool, and the ground truth of the run.
//!
//! The pool knows nothing of leases. Each block has one atomic word, its generation and whether it is
//! allocated, so whatever the tracker believes, the pool can tell
//!
//! - a block that is freed twice ([`BlockPool::free`] finds another generation, or a free block),
//! - a block that is never freed ([`BlockPool::allocated`] at the end),
//! - a read of a block that was released under the reader ([`BlockPool::holds`] after the read).
//!
//! Where the blocks are memory that others read ([`Store`]), what is in them is told by their generation, and spoilt
//! when they are freed; so a remote reader can tell, too.
//!
//! A generation never returns, so one look *after* a read is exact: a block that is still allocated in
//! the generation the reader was given was so during the whole read.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The lowest bit of a block's word; the generation is above it.
const ALLOCATED: u64 = 1;

/// One block as a remote reader addresses it, with the generation that makes a stale address visible.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRef {
    pub index: u32,
    pub word: u64,
}

/// The memory of the blocks.
pub trait Store: Send + Sync {
    /// The block has this generation now.
    fn fill(&self, block: BlockRef);
    /// The block is free.
    fn spoil(&self, index: u32);
}

/// None: the blocks are numbers only.
impl Store for () {
    fn fill(&self, _: BlockRef) {}

    fn spoil(&self, _: u32) {}
}

/// The blocks of one request: what the prefill side keeps and, once, gives back. This is the payload of
/// a lease. It cannot be cloned; readers get the [`addresses`](Pinned::addresses).
#[derive(Debug)]
#[must_use = "blocks that are not freed are leaked"]
pub struct Pinned(Arc<[BlockRef]>);

impl Pinned {
    /// Where the blocks are, for the decode side.
    pub fn addresses(&self) -> Arc<[BlockRef]> {
        Arc::clone(&self.0)
    }
}

/// What [`BlockPool::free`] found: some block was not the caller's to free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DoubleFree;

/// All blocks of the prefill worker.
pub struct BlockPool {
    store: Box<dyn Store>,
    words: Vec<AtomicU64>,
    /// Last in, first out, so a released block is in use again soon, which is when a stale read hurts.
    free: Mutex<Vec<u32>>,
    peak: AtomicUsize,
    /// The same, since somebody asked.
    recent_peak: AtomicUsize,
}

impl BlockPool {
    /// A pool of `blocks` free blocks.
    pub fn new(blocks: u32) -> Self {
        Self::with_store(blocks, ())
    }

    /// A pool of `blocks` free blocks that are memory.
    pub fn with_store(blocks: u32, store: impl Store + 'static) -> Self {
        BlockPool {
            store: Box::new(store),
            words: (0..blocks).map(|_| AtomicU64::new(0)).collect(),
            free: Mutex::new((0..blocks).rev().collect()),
            peak: AtomicUsize::new(0),
            recent_peak: AtomicUsize::new(0),
        }
    }

    /// Takes `count` blocks, or `None` if there are not so many.
    pub fn allocate(&self, count: u32) -> Option<Pinned> {
        let mut free = self.free.lock().unwrap();
        let rest = free.len().checked_sub(count as usize)?;
        let taken = free.split_off(rest);
        self.peak.fetch_max(self.words.len() - rest, Ordering::Relaxed);
        self.recent_peak.fetch_max(self.words.len() - rest, Ordering::Relaxed);
        drop(free);
        let block = |index: u32| {
            // The block is this caller's: it came off the free list. Generation + 1, allocated.
            let word = (self.words[index as usize].load(Ordering::Acquire) + 2) | ALLOCATED;
            self.words[index as usize].store(word, Ordering::Release);
            let block = BlockRef { index, word };
            self.store.fill(block);
            block
        };
        Some(Pinned(taken.into_iter().map(block).collect()))
    }

    /// Gives blocks back.
    pub fn free(&self, blocks: Pinned) -> Result<(), DoubleFree> {
        self.free_addresses(&blocks.0)
    }

    /// Gives back blocks by their addresses, which anybody may hold: how a double free can happen.
    pub fn free_addresses(&self, blocks: &[BlockRef]) -> Result<(), DoubleFree> {
        let mine = |block: &&BlockRef| {
            let word = &self.words[block.index as usize];
            word.compare_exchange(block.word, block.word & !ALLOCATED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let freed: Vec<u32> = blocks.iter().filter(mine).map(|block| block.index).collect();
        freed.iter().for_each(|index| self.store.spoil(*index));
        let all = freed.len() == blocks.len();
        self.free.lock().unwrap().extend(freed);
        if all { Ok(()) } else { Err(DoubleFree) }
    }

    /// Whether every one of these blocks is still allocated, and never was anything else since the
    /// addresses were handed out.
    pub fn holds(&self, blocks: &[BlockRef]) -> bool {
        blocks.iter().all(|block| self.words[block.index as usize].load(Ordering::Acquire) == block.word)
    }

    /// How many blocks are allocated now; at the end of the run, how many leaked.
    pub fn allocated(&self) -> usize {
        self.words.iter().filter(|word| word.load(Ordering::Acquire) & ALLOCATED != 0).count()
    }

    /// The most blocks that were ever allocated at once.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// The most blocks that were allocated at once since this was last asked. For one thread to ask.
    pub fn most_since_last_asked(&self) -> usize {
        let now = self.words.len() - self.free.lock().unwrap().len();
        self.recent_peak.swap(0, Ordering::Relaxed).max(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allocated_and_freed_leaves_nothing() {
        let pool = BlockPool::new(10);
        let blocks = pool.allocate(7).unwrap();
        assert!(pool.allocate(4).is_none());
        assert_eq!((pool.allocated(), pool.peak()), (7, 7));
        assert_eq!(pool.free(blocks), Ok(()));
        assert_eq!((pool.allocated(), pool.peak()), (0, 7));
        assert_eq!([pool.most_since_last_asked(), pool.most_since_last_asked()], [7, 0]);
    }

    #[test]
    fn a_second_free_is_noticed_even_when_the_block_is_in_use_again() {
        let pool = BlockPool::new(1);
        let first = pool.allocate(1).unwrap();
        let addresses = first.addresses();
        pool.free(first).unwrap();
        assert_eq!(pool.free_addresses(&addresses), Err(DoubleFree));
        let second = pool.allocate(1).unwrap();
        assert_eq!(pool.free_addresses(&addresses), Err(DoubleFree));
        assert!(pool.holds(&second.addresses()));
        pool.free(second).unwrap();
    }

    #[test]
    fn a_reader_learns_that_its_blocks_were_released_also_after_their_reuse() {
        let pool = BlockPool::new(2);
        let blocks = pool.allocate(2).unwrap();
        let addresses = blocks.addresses();
        assert!(pool.holds(&addresses));
        pool.free(blocks).unwrap();
        assert!(!pool.holds(&addresses));
        let reused = pool.allocate(2).unwrap();
        assert!(!pool.holds(&addresses));
        pool.free(reused).unwrap();
    }

    #[test]
    fn blocks_that_are_dropped_count_as_leaked() {
        let pool = BlockPool::new(3);
        drop(pool.allocate(2).unwrap());
        assert_eq!(pool.allocated(), 2);
    }
}
