//! Keys and values of the tokens so far.

use super::room::Ring;
use crate::config::ModelConfig;
use crate::error::Result;
use tessl::nn::{Attention, Copy, KvStore, RingDensify};
use tessl::{BufferKind, GpuRuntime, Scalar, Stream, Tensor};

/// Keys and values of one layer: [1, capacity, KV heads, head]. A layer with a window keeps that many positions, in a ring:
/// position p in slot `p % window`.
#[derive(Debug)]
pub(crate) struct Cache {
    k: Tensor,
    v: Tensor,
    is_ring: bool,
}

impl Cache {
    /// For `layer`, with room for a sequence of `capacity` tokens.
    pub(crate) fn new(rt: &GpuRuntime, c: &ModelConfig, layer: usize, capacity: usize) -> Result<Self> {
        let window = c.window.filter(|&w| c.has_window(layer) && w < capacity);
        let slots = window.unwrap_or(capacity);
        let zeros = || rt.zeros(c.activations, &[1, slots, c.kv_heads, c.head_dim], BufferKind::Hot);
        Ok(Cache { k: zeros()?, v: zeros()?, is_ring: window.is_some() })
    }

    /// Stores keys and values and attends to all of them, or to the last `window`.
    pub(super) fn attend(
        &self,
        s: &mut Stream,
        [q, k, v, attended]: [&Tensor; 4],
        place: Place<'_>,
        window: Option<usize>,
        ring: Option<&Ring>,
    ) -> tessl::Result<()> {
        if let Some(ring) = ring.filter(|_| self.is_ring) {
            return self.attend_ring(s, [q, k, v, attended], place, ring);
        }
        let at = Scalar::Device(place.start);
        KvStore::pair(k, &self.k, v, &self.v, at).run_on(s)?;
        let (keys, values) = (self.k.narrow(1, 0, place.keys)?, self.v.narrow(1, 0, place.keys)?);
        let attention = Attention::new(q, &keys, &values, attended).causal(at);
        match window.and_then(|w| u32::try_from(w).ok()) {
            Some(window) => attention.window(window).run_on(s),
            None => attention.run_on(s),
        }
    }

    /// As [`attend`](Self::attend) where the last keys are a ring.
    fn attend_ring(
        &self,
        s: &mut Stream,
        [q, k, v, attended]: [&Tensor; 4],
        place: Place<'_>,
        ring: &Ring,
    ) -> tessl::Result<()> {
        let (slots, tokens) = (self.k.shape()[1], q.shape()[1]);
        let Some(position) = place.position.filter(|_| tokens > 1) else {
            // The ring holds what this token sees and nothing else; the order of keys does not matter.
            KvStore::pair(k, &self.k, v, &self.v, Scalar::Device(place.start)).ring().run_on(s)?;
            let keys = place.keys.min(slots);
            let (keys, values) = (self.k.narrow(1, 0, keys)?, self.v.narrow(1, 0, keys)?);
            return Attention::new(q, &keys, &values, attended).kv_lengths(&ring.filled).run_on(s);
        };
        let counted = |n: usize| u32::try_from(n).expect("INVARIANT: dimensions were checked");
        let past = position.min(slots - 1);
        for (held, new, all) in [(&self.k, k, &ring.k), (&self.v, v, &ring.v)] {
            if past > 0 {
                RingDensify::new(held, counted(position - past), &all.narrow(1, 0, past)?).run_on(s)?;
            }
            Copy::new(new, &all.narrow(1, past, tokens)?).run_on(s)?;
        }
        let (keys, values) = (ring.k.narrow(1, 0, past + tokens)?, ring.v.narrow(1, 0, past + tokens)?);
        Attention::new(q, &keys, &values, attended).causal(counted(past)).window(counted(slots)).run_on(s)?;
        let kept = tokens.min(slots);
        let (k, v) = (k.narrow(1, tokens - kept, kept)?, v.narrow(1, tokens - kept, kept)?);
        let from = counted(position + tokens - kept);
        KvStore::pair(&k, &self.k, &v, &self.v, from).ring().run_on(s)
    }
}

/// Where the tokens of a pass stand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    /// Position of the first one, which kernels read.
    pub(crate) start: &'a Tensor,
    /// The same where the host knows it. A single token does without.
    pub(crate) position: Option<usize>,
    /// Keys that commands are planned for: a bucket that the last token lies in.
    pub(crate) keys: usize,
}
