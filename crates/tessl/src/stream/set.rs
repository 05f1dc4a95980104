//! Graphs of one step in several forms.

use super::{Graph, Stream, Ticket};
use crate::error::{Error, ErrorKind, Result};

/// Lengths in powers of two: a graph that was planned for a bucket serves every length up to it.
///
/// ```
/// use tessl::Buckets;
/// let buckets = Buckets::new(256, 3000);
/// assert_eq!([1, 256, 257, 2049, 3000].map(|n| buckets.of(n)), [256, 256, 512, 3000, 3000].map(Some));
/// assert_eq!(buckets.of(3001), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    least: usize,
    most: usize,
}

impl Buckets {
    /// The smallest bucket is `least`, rounded up to a power of two, and the largest `most`; neither is above `most`.
    pub fn new(least: usize, most: usize) -> Self {
        Buckets { least: least.checked_next_power_of_two().unwrap_or(most), most }
    }

    /// The bucket of a length, `None` beyond the largest.
    pub fn of(self, length: usize) -> Option<usize> {
        let bucket = length.checked_next_power_of_two().unwrap_or(self.most).max(self.least).min(self.most);
        (length <= self.most).then_some(bucket)
    }
}

/// What a [`GraphSet`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct GraphStats {
    /// Graphs made.
    pub captures: u64,
    /// Steps replayed.
    pub replays: u64,
    /// Steps encoded live because the device cannot make a graph of them.
    pub fallbacks: u64,
    /// Graphs dropped to make room.
    pub evictions: u64,
}

/// Graphs of one step in several forms (buckets of lengths, the two sides of a double buffer), each captured when it is first
/// needed and kept. They share the buffers that the step names; scratch memory is each graph's own.
///
/// ```
/// use tessl::{nn::Add, Device, GpuRuntime, GraphSet};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let one = rt.from_slice(&[1.0f32; 4], &[4])?;
/// let sums = [rt.alloc_tensor_f32(&[4])?, rt.alloc_tensor_f32(&[4])?];
/// let (mut stream, mut graphs) = (rt.stream()?, GraphSet::new(8));
/// for turn in 0..10 {
///     let side = turn % 2;
///     graphs.run(&mut stream, side, |s| Add::new(&sums[side], &one, &sums[1 - side]).run_on(s))?;
/// }
/// assert_eq!(sums[0].read::<f32>()?, [10.0; 4]);
/// assert_eq!((graphs.stats().captures, graphs.stats().replays), (2, 10));
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Debug)]
pub struct GraphSet<K> {
    graphs: Vec<Held<K>>,
    most: usize,
    runs: u64,
    stats: GraphStats,
}

#[derive(Debug)]
struct Held<K> {
    key: K,
    graph: Graph,
    last_run: u64,
}

impl<K: PartialEq> GraphSet<K> {
    /// No graphs yet, and never more than `most` (at least one): the one that was not run for longest goes.
    pub fn new(most: usize) -> Self {
        GraphSet { graphs: Vec::new(), most: most.max(1), runs: 0, stats: GraphStats::default() }
    }

    /// Runs the step of this key on `stream`. `encode` is called to record it where there is no graph yet, perhaps more than
    /// once: scratch memory is grown until it suffices. It must encode the same commands for equal keys.
    ///
    /// # Errors
    /// What `encode`, [`Stream::capture`], [`Stream::reserve`] and [`Graph::replay`] report; nothing has run then.
    pub fn run(
        &mut self,
        stream: &mut Stream,
        key: K,
        mut encode: impl FnMut(&mut Stream) -> Result<()>,
    ) -> Result<Ticket> {
        self.runs += 1;
        let held = match self.graphs.iter().position(|held| held.key == key) {
            Some(held) => held,
            None => match record(stream, &mut encode) {
                Ok(graph) => self.keep(key, graph),
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    encode(stream)?;
                    self.stats.fallbacks += 1;
                    return stream.commit();
                }
                Err(error) => return Err(error),
            },
        };
        let held = &mut self.graphs[held];
        held.last_run = self.runs;
        let ticket = held.graph.replay(stream)?;
        self.stats.replays += 1;
        Ok(ticket)
    }

    /// What it has done so far.
    pub fn stats(&self) -> GraphStats {
        self.stats
    }

    /// Drops all graphs.
    pub fn clear(&mut self) {
        self.graphs.clear();
    }

    fn keep(&mut self, key: K, graph: Graph) -> usize {
        self.stats.captures += 1;
        let new = Held { key, graph, last_run: self.runs };
        if self.graphs.len() < self.most {
            self.graphs.push(new);
            return self.graphs.len() - 1;
        }
        let oldest = (0..self.graphs.len()).min_by_key(|&i| self.graphs[i].last_run).unwrap_or(0);
        self.graphs[oldest] = new;
        self.stats.evictions += 1;
        oldest
    }
}

/// Captures; scratch memory that is too small is grown, which each time serves at least one more command.
fn record(stream: &mut Stream, encode: &mut impl FnMut(&mut Stream) -> Result<()>) -> Result<Graph> {
    let mut reserved = 0;
    loop {
        match stream.capture(&mut *encode) {
            Err(Error::Scratch { bytes, .. }) if bytes > reserved => {
                stream.reserve(bytes)?;
                reserved = bytes;
            }
            outcome => return outcome,
        }
    }
}
