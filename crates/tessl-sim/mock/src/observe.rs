//! What the core asked of the device, for comparison with what the device asked of Metal.
//!
//! Metal sees addresses only. A wrapper around the backend notes each batch before it is submitted; the driver matches
//! every dispatch with a command of the batch and takes the ranges from there.

use crate::record::Access;
use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tessl::device::{Backend, FaultRecord, Fence, MemoryUse, PipelineId, Queue, RawMemory};
use tessl::plan::KernelKey;
use tessl::stream::{Access as Kind, Batch, Rect, Work};
use tessl::{DeviceInfo, DeviceProfile, Error, Library, Result};

/// One command of the batch in hand.
struct Wanted {
    label: &'static str,
    kernel: bool,
    addresses: Vec<u64>,
    accesses: Vec<Access>,
    args: Vec<u8>,
}

thread_local! {
    static BATCH: RefCell<Option<(Vec<Wanted>, usize)>> = const { RefCell::new(None) };
}

/// What the driver learns of a dispatch.
pub struct Claim {
    pub label: String,
    pub accesses: Vec<Access>,
    /// The slot of the argument block and its bytes.
    pub args: Option<(usize, Vec<u8>)>,
}

/// Finds the command that a dispatch belongs to; `None` outside an observed submission.
pub fn claim(
    kernel: &str,
    slots: &[u64],
    read: impl Fn(u64, usize) -> Option<Vec<u8>>,
) -> Option<std::result::Result<Claim, String>> {
    BATCH.with_borrow_mut(|batch| {
        let (commands, next) = batch.as_mut()?;
        let moves = kernel.starts_with("copy_rows") || kernel.starts_with("fill_rows");
        let fits = |c: &Wanted| {
            let n = c.addresses.len();
            let args =
                || c.args.is_empty() || slots.get(n).is_some_and(|a| read(*a, c.args.len()).as_ref() == Some(&c.args));
            c.kernel != moves && slots.len() >= n && slots[..n] == c.addresses && args()
        };
        let Some(skipped) = commands[*next..].iter().position(fits) else {
            let text = format!("a dispatch of `{kernel}` binds {slots:x?}, which no later command of its batch does");
            return Some(Err(text));
        };
        let at = *next + skipped;
        *next = at + 1;
        let command = &commands[at];
        let args = (!command.args.is_empty()).then(|| (command.addresses.len(), command.args.clone()));
        Some(Ok(Claim { label: format!("{} ({kernel})", command.label), accesses: command.accesses.clone(), args }))
    })
}

/// Memory that the core has: its start and its bytes. The rest is the host code's own.
static OWNED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn owned() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_owned(address: u64) -> bool {
    owned().range(..=address).next_back().is_some_and(|(start, bytes)| address - start < *bytes)
}

/// Whether a blit moves bytes that a copy or fill of the batch in hand covers, or that the core knows nothing of; true
/// outside an observed submission.
pub fn covered(sides: &[u64], bytes: u64) -> bool {
    BATCH.with_borrow(|batch| {
        let Some((commands, _)) = batch else { return true };
        if !sides.iter().any(|at| is_owned(*at)) {
            return true;
        }
        let fits = |c: &&Wanted| {
            let mut pairs = c.accesses.iter().zip(sides);
            !c.kernel && c.accesses.len() == sides.len() && pairs.all(|(a, at)| covers(&a.rect, *at, bytes))
        };
        commands.iter().any(|c| fits(&c))
    })
}

/// Whether a run of bytes lies inside a rectangle.
fn covers(rect: &Rect, at: u64, bytes: u64) -> bool {
    if at < rect.offset || at + bytes > rect.end() {
        return false;
    }
    rect.rows == 1 || rect.pitch == rect.width || (at - rect.offset) % rect.pitch + bytes <= rect.width
}

/// Barriers that a batch needs: one before each command that conflicts with one since the last.
#[derive(Default)]
struct Needed {
    since: Vec<Access>,
}

impl Needed {
    fn count(&mut self, commands: &[Wanted]) -> u64 {
        let mut barriers = 0;
        for command in commands {
            let meets = |a: &Access| self.since.iter().any(|b| (a.write || b.write) && a.rect.overlaps(&b.rect));
            if command.accesses.iter().any(meets) {
                barriers += 1;
                self.since.clear();
            }
            self.since.extend(&command.accesses);
        }
        barriers
    }
}

/// Totals over all queues of an observed backend.
#[derive(Default)]
pub struct Totals {
    /// Barriers that the hazards of the batches need.
    pub needed: AtomicU64,
    pub replays: AtomicU64,
    pub batches: AtomicU64,
}

/// A backend that tells the driver what it is asked for.
pub struct Observed {
    inner: Arc<dyn Backend>,
    pub totals: Arc<Totals>,
}

impl Observed {
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        Observed { inner, totals: Arc::default() }
    }
}

struct ObservedQueue {
    inner: Arc<dyn Queue>,
    totals: Arc<Totals>,
    needed: Mutex<Needed>,
}

impl ObservedQueue {
    fn note(&self, batch: &Batch, replay: bool) {
        let commands: Vec<Wanted> = batch
            .commands()
            .iter()
            .map(|c| {
                let bindings = batch.bindings(c);
                let access = |b: &tessl::stream::Binding| Access {
                    rect: Rect { offset: b.device_address(), ..b.rect },
                    write: b.access == Kind::Write,
                };
                Wanted {
                    label: c.label,
                    kernel: matches!(c.work, Work::Kernel { .. }),
                    addresses: bindings.iter().map(|b| b.device_address()).collect(),
                    accesses: bindings.iter().map(access).collect(),
                    args: batch.args(c).to_vec(),
                }
            })
            .collect();
        let mut needed = self.needed.lock().unwrap_or_else(PoisonError::into_inner);
        self.totals.batches.fetch_add(1, Ordering::Relaxed);
        if replay {
            needed.since.clear();
            self.totals.replays.fetch_add(1, Ordering::Relaxed);
        }
        self.totals.needed.fetch_add(needed.count(&commands), Ordering::Relaxed);
        BATCH.set(Some((commands, 0)));
    }

    fn fences(fences: &[Fence]) -> Vec<Fence> {
        let unwrap = |f: &Fence| {
            let queue = f.queue.as_any().downcast_ref::<ObservedQueue>().map_or(&f.queue, |q| &q.inner);
            Fence { queue: queue.clone(), value: f.value }
        };
        fences.iter().map(unwrap).collect()
    }
}

impl Queue for ObservedQueue {
    unsafe fn submit(&self, batch: &Batch, fences: &[Fence], signal: u64) -> Result<()> {
        self.note(batch, false);
        // SAFETY: the caller's promises.
        let outcome = unsafe { self.inner.submit(batch, &Self::fences(fences), signal) };
        BATCH.set(None);
        outcome
    }

    unsafe fn replay(
        &self,
        baked: &(dyn Any + Send + Sync),
        batch: &Batch,
        fences: &[Fence],
        signal: u64,
    ) -> Result<()> {
        self.note(batch, true);
        // SAFETY: the caller's promises.
        let outcome = unsafe { self.inner.replay(baked, batch, &Self::fences(fences), signal) };
        BATCH.set(None);
        outcome
    }

    fn completed(&self) -> u64 {
        self.inner.completed()
    }

    fn wait(&self, signal: u64, deadline: Option<Instant>) -> Result<bool> {
        self.inner.wait(signal, deadline)
    }

    fn take_fault(&self) -> Option<FaultRecord> {
        self.inner.take_fault()
    }

    fn take_failure(&self) -> Option<(u64, Error)> {
        self.inner.take_failure()
    }

    fn device_time(&self) -> Option<Duration> {
        self.inner.device_time()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Backend for Observed {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn profile(&self) -> &DeviceProfile {
        self.inner.profile()
    }

    fn allocate(&self, bytes: u64, usage: MemoryUse) -> Result<RawMemory> {
        let memory = self.inner.allocate(bytes, usage)?;
        owned().insert(memory.device, bytes);
        Ok(memory)
    }

    unsafe fn free(&self, memory: RawMemory) {
        owned().remove(&memory.device);
        // SAFETY: the caller's promises.
        unsafe { self.inner.free(memory) }
    }

    unsafe fn import(&self, pointer: *mut u8, bytes: u64) -> Result<RawMemory> {
        // SAFETY: the caller's promises.
        let memory = unsafe { self.inner.import(pointer, bytes)? };
        owned().insert(memory.device, bytes);
        Ok(memory)
    }

    unsafe fn end_import(&self, memory: RawMemory) {
        owned().remove(&memory.device);
        // SAFETY: the caller's promises.
        unsafe { self.inner.end_import(memory) }
    }

    fn pipeline(&self, key: &KernelKey) -> Result<PipelineId> {
        self.inner.pipeline(key)
    }

    fn add_library(&self, library: Library) -> Result<()> {
        self.inner.add_library(library)
    }

    fn queue(&self) -> Result<Arc<dyn Queue>> {
        let (inner, totals) = (self.inner.queue()?, self.totals.clone());
        Ok(Arc::new(ObservedQueue { inner, totals, needed: Mutex::default() }))
    }

    fn bake(&self, batch: &Batch) -> Result<Option<Arc<dyn Any + Send + Sync>>> {
        self.inner.bake(batch)
    }

    fn prebuilt(&self, baked: &(dyn Any + Send + Sync)) -> usize {
        self.inner.prebuilt(baked)
    }

    fn allocation_limit(&self) -> u64 {
        self.inner.allocation_limit()
    }
}
