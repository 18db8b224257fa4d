//! Registered memory, and transfers to and from it, over the real NIXL: what moves the bytes, which kvlease does not.

use kvlease::transport::nixl::Agent;
use nixl_sys::{
    MemType, MemoryRegion, NixlDescriptor, NixlError, OptArgs, RegistrationHandle, XferDescList, XferOp, XferRequest,
};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Memory that other processes read and write, through NIXL, at any time.
///
/// There is never a reference to it in Rust, only copies in and out, so that it does not matter who changes it when:
/// a copy then holds some of the old bytes and some of the new.
pub struct Memory {
    place: Place,
    registration: RegistrationHandle,
}

/// Where it is, as NIXL is told when it is registered.
#[derive(Debug)]
struct Place {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: nothing but an address. What is there is only copied, byte by byte.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `Memory::register`, and not used any more: see `Memory::drop`.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

impl MemoryRegion for Place {
    unsafe fn as_ptr(&self) -> *const u8 {
        self.base.as_ptr()
    }

    fn size(&self) -> usize {
        self.layout.size()
    }
}

impl NixlDescriptor for Place {
    fn mem_type(&self) -> MemType {
        MemType::Dram
    }

    fn device_id(&self) -> u64 {
        0
    }
}

impl Memory {
    /// So many bytes, zeroed, registered with this agent. Shake hands after it.
    pub fn register(agent: &Agent, len: usize) -> Result<Self, NixlError> {
        let layout = Layout::from_size_align(len.max(1), 4_096).map_err(|_| NixlError::InvalidParam)?;
        // SAFETY: the layout is not of size zero.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let place = Place { base, layout };
        let registration = agent.raw().register_memory(&place, None)?;
        Ok(Memory { place, registration })
    }

    /// Where it begins, for those who read it from afar.
    pub fn address(&self) -> u64 {
        self.place.base.as_ptr() as u64
    }

    /// Copies bytes in. Panics if they do not fit, which is a fault of this program.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.check(offset, bytes.len());
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: within the allocation, as checked above. Volatile, for others look at it.
            unsafe { self.place.base.as_ptr().add(offset + i).write_volatile(*byte) }
        }
    }

    /// Copies bytes out. Panics if there are not so many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        self.check(offset, bytes.len());
        for (i, byte) in bytes.iter_mut().enumerate() {
            // SAFETY: as in `write`.
            *byte = unsafe { self.place.base.as_ptr().add(offset + i).read_volatile() };
        }
    }

    fn check(&self, offset: usize, len: usize) {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.place.layout.size()), "{len} bytes at {offset} are outside");
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // Before the memory is freed: NIXL answers reads of it until then. It logs what goes wrong itself.
        _ = self.registration.deregister();
    }
}

/// A transfer under way. **It has to be asked until it is done**: that is when its notification leaves.
pub struct Transfer {
    agent: nixl_sys::Agent,
    request: XferRequest,
    done: bool,
}

/// One piece of a transfer: so many bytes from this offset in the local memory, and this address in the remote one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub offset: usize,
    pub remote: u64,
    pub len: usize,
}

impl Transfer {
    /// Begins to read from (or write to) another agent, which gets the notification when it is done.
    pub fn begin(
        agent: &nixl_sys::Agent,
        op: XferOp,
        memory: &Memory,
        peer: &str,
        pieces: &[Piece],
        notification: &[u8],
    ) -> Result<Self, NixlError> {
        let (mut local, mut remote) = (XferDescList::new(MemType::Dram)?, XferDescList::new(MemType::Dram)?);
        for piece in pieces {
            memory.check(piece.offset, piece.len);
            local.add_desc(memory.place.base.as_ptr() as usize + piece.offset, piece.len, 0);
            remote.add_desc(piece.remote as usize, piece.len, 0);
        }
        let mut args = OptArgs::new()?;
        args.set_has_notification(true)?;
        args.set_notification_message(notification)?;
        let request = agent.create_xfer_req(op, &local, &remote, peer, Some(&args))?;
        let done = !agent.post_xfer_req(&request, None)?;
        Ok(Transfer { agent: agent.clone(), request, done })
    }

    /// Whether it is done.
    pub fn poll(&mut self) -> Result<bool, NixlError> {
        if !self.done {
            self.done = self.agent.get_xfer_status(&self.request)?.is_success();
        }
        Ok(self.done)
    }
}
