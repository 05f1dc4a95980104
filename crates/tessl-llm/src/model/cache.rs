//! Keys and values of the tokens so far.

use super::room::Ring;
use crate::config::ModelConfig;
use crate::error::Result;
use tessl::nn::{Attention, Copy, KvPlaces, KvStore, RingDensify};
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

    /// Where the keys and values of a token go, if they can be stored before attention: those of a chunk overwrite what
    /// its first tokens still see of a ring.
    pub(super) fn places(&self, tokens: usize) -> Option<(KvPlaces<'_>, [&Tensor; 2])> {
        let places = if self.is_ring { KvPlaces::Ring } else { KvPlaces::Cache };
        (tokens == 1 || !self.is_ring).then_some((places, [&self.k, &self.v]))
    }

    /// Stores keys and values and attends to all of them, or to the last `window`.
    pub(super) fn store_and_attend(
        &self,
        s: &mut Stream,
        [q, k, v, attended]: [&Tensor; 4],
        place: Place<'_>,
        window: Option<usize>,
        ring: Option<&Ring>,
    ) -> tessl::Result<()> {
        match (ring, place.position) {
            (Some(ring), Some(position)) if self.is_ring && q.shape()[1] > 1 => {
                self.attend_chunk(s, [q, k, v, attended], position, ring)
            }
            _ => {
                let store = KvStore::pair(k, &self.k, v, &self.v, Scalar::Device(place.start));
                if self.is_ring {
                    store.ring().run_on(s)?
                } else {
                    store.run_on(s)?
                }
                self.attend(s, q, attended, place, window, ring)
            }
        }
    }

    /// Attends to the keys that are stored, those of the queries' own tokens among them.
    pub(super) fn attend(
        &self,
        s: &mut Stream,
        q: &Tensor,
        attended: &Tensor,
        place: Place<'_>,
        window: Option<usize>,
        ring: Option<&Ring>,
    ) -> tessl::Result<()> {
        let keys = place.keys.min(self.k.shape()[1]);
        let (keys, values) = (self.k.narrow(1, 0, keys)?, self.v.narrow(1, 0, keys)?);
        let attention = Attention::new(q, &keys, &values, attended);
        if let Some(ring) = ring.filter(|_| self.is_ring) {
            // The ring holds what this token sees and nothing else; the order of keys does not matter.
            return attention.kv_lengths(&ring.filled).run_on(s);
        }
        let attention = attention.causal(Scalar::Device(place.start));
        match window.and_then(|w| u32::try_from(w).ok()) {
            Some(window) => attention.window(window).run_on(s),
            None => attention.run_on(s),
        }
    }

    /// Several tokens and a ring: it is put in order, with the new keys behind it.
    fn attend_chunk(
        &self,
        s: &mut Stream,
        [q, k, v, attended]: [&Tensor; 4],
        position: usize,
        ring: &Ring,
    ) -> tessl::Result<()> {
        let (slots, tokens) = (self.k.shape()[1], q.shape()[1]);
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
