//! One layer: attention and a gated feed-forward network, each around a residual connection.

use super::cache::{Cache, Place};
use super::room::{Hidden, Room};
use crate::config::{Architecture, ModelConfig};
use crate::error::Result;
use crate::weights::{Matrix, Weights};
use tessl::nn::{Glu, NormQkvRope, Positions, QkNorm, QuantizedGlu, QuantizedQkv, Rope, RopeFrequencies, RopeStyle};
use tessl::{Activation, Gemm, Scalar, Stream, Tensor};

#[derive(Debug)]
pub(super) struct Layer {
    attention_norm: Tensor,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    /// All three side by side, where they are dense: one product.
    qkv: Option<Tensor>,
    /// Whether their matrices and heads are such that one launch goes from the residual stream to the cache.
    one_launch: bool,
    /// Norms of each head of queries and keys.
    qk_norm: Option<[Tensor; 2]>,
    out: Matrix,
    /// Of what attention adds, where the family has it.
    attention_post_norm: Option<Tensor>,
    feed_forward_norm: Tensor,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
    /// Of what the feed-forward network adds.
    feed_forward_post_norm: Option<Tensor>,
}

/// Matrices of `c.width` columns that are multiplied together: parts of a layer, and their rows.
fn together<const N: usize>(
    loader: &dyn Weights,
    c: &ModelConfig,
    names: [String; N],
    rows: [usize; N],
) -> Result<[Matrix; N]> {
    let mut all = Vec::with_capacity(N);
    for (name, rows) in names.iter().zip(rows) {
        all.push(loader.matrix(name, [rows, c.width], c.activations, &names)?);
    }
    Ok(all.try_into().expect("INVARIANT: one for each name"))
}

impl Layer {
    pub(super) fn load(loader: &dyn Weights, c: &ModelConfig, index: usize) -> Result<Self> {
        let name = |part: &str| format!("blk.{index}.{part}.weight");
        let matrix = |part: &str, rows, columns| loader.matrix(&name(part), [rows, columns], c.activations, &[]);
        let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let gemma = c.architecture == Architecture::Gemma3;
        let normed_heads = gemma || c.architecture == Architecture::Qwen3;
        let head = |part: &str| loader.vector(&name(part), c.head_dim);
        let post = |part: &str| gemma.then(|| loader.vector(&name(part), c.width)).transpose();
        let projections = together(loader, c, ["attn_q", "attn_k", "attn_v"].map(name), [q, kv, kv])?;
        let fits = c.head_dim <= NormQkvRope::MAX_HEAD_DIM && c.width.is_multiple_of(NormQkvRope::DENSE_COLUMNS);
        let one_launch = fits && Matrix::of_one_kind(&projections);
        let ([q_matrix, k_matrix, v_matrix], qkv) = Matrix::side_by_side(projections)?;
        let [gate, up] = together(loader, c, ["ffn_gate", "ffn_up"].map(name), [c.feed_forward; 2])?;
        Ok(Layer {
            attention_norm: loader.vector(&name("attn_norm"), c.width)?,
            q: q_matrix,
            k: k_matrix,
            v: v_matrix,
            qkv,
            one_launch,
            qk_norm: if normed_heads { Some([head("attn_q_norm")?, head("attn_k_norm")?]) } else { None },
            out: matrix("attn_output", c.width, q)?,
            attention_post_norm: post("post_attention_norm")?,
            feed_forward_norm: loader.vector(&name("ffn_norm"), c.width)?,
            gate,
            up,
            down: matrix("ffn_down", c.width, c.feed_forward)?,
            feed_forward_post_norm: post("post_ffw_norm")?,
        })
    }

    /// Bytes of weights that a token reads.
    pub(super) fn bytes(&self) -> u64 {
        [&self.q, &self.k, &self.v, &self.out, &self.gate, &self.up, &self.down].map(Matrix::bytes).iter().sum()
    }

    /// Takes the tokens of `room` through the layer. What the feed-forward network adds is owed by `hidden` afterwards where
    /// it has a norm of its own.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn forward<'a>(
        &'a self,
        s: &mut Stream,
        c: &ModelConfig,
        place: Place<'_>,
        room: &'a Room,
        hidden: &mut Hidden<'a>,
        cache: &Cache,
        frequencies: &RopeFrequencies,
        window: Option<usize>,
    ) -> tessl::Result<()> {
        let tokens = room.x.shape()[0];
        let q = one_sequence(&room.qkv.narrow(1, 0, c.heads)?)?;
        let attended = one_sequence(&room.attended)?;
        match cache.places(tokens).filter(|_| self.one_launch && tokens <= NormQkvRope::MAX_TOKENS) {
            Some((places, [k, v])) => {
                let weights = [&self.q, &self.k, &self.v].map(Matrix::weights);
                let (x, sum, added) =
                    (one_sequence(hidden.x)?, one_sequence(hidden.other)?, one_sequence(&room.normed)?);
                let start = Scalar::Device(place.start);
                let call = NormQkvRope::new(&x, &self.attention_norm, weights, frequencies, start, [&q, k, v]);
                let mut call = call.eps(c.eps).style(style(c)).kv(places);
                if let Some([q_norm, k_norm]) = &self.qk_norm {
                    call = call.head_norms(q_norm, k_norm);
                }
                if let Some(norm) = hidden.owed.take() {
                    call = call.residual(&added, norm, &sum);
                    hidden.swap();
                }
                call.run_on(s)?;
                cache.attend(s, &q, &attended, place, window, room.ring.as_ref())?;
            }
            None => {
                hidden.normalise(s, c, &self.attention_norm, &room.normed)?;
                self.project(s, c, room)?;
                let k = room.qkv.narrow(1, c.heads, c.kv_heads)?;
                if let Some([q_norm, k_norm]) = &self.qk_norm {
                    QkNorm::new(&room.qkv.narrow(1, 0, c.heads)?, &k, q_norm, k_norm).eps(c.eps).run_on(s)?;
                }
                let qk = room.qkv.narrow(1, 0, c.heads + c.kv_heads)?;
                let from = Positions::From(Scalar::Device(place.start));
                Rope::new(&qk, frequencies, from, &qk).style(style(c)).run_on(s)?;
                let v = room.qkv.narrow(1, c.heads + c.kv_heads, c.kv_heads)?;
                let (k, v) = (one_sequence(&k)?, one_sequence(&v)?);
                cache.store_and_attend(s, [&q, &k, &v, &attended], place, window, room.ring.as_ref())?;
            }
        }
        let attended = room.attended.reshape(&[tokens, c.heads * c.head_dim])?;
        self.add(s, &self.out, &attended, self.attention_post_norm.as_ref(), room, hidden)?;
        hidden.normalise(s, c, &self.feed_forward_norm, &room.normed)?;
        self.gated(s, c, room)?;
        self.add(s, &self.down, &room.gate, self.feed_forward_post_norm.as_ref(), room, hidden)
    }

    /// Queries, keys and values, in one launch where their weights have one form.
    fn project(&self, s: &mut Stream, c: &ModelConfig, room: &Room) -> tessl::Result<()> {
        let tokens = room.x.shape()[0];
        let all = (c.heads + 2 * c.kv_heads) * c.head_dim;
        let flat = room.qkv.reshape(&[tokens, all])?;
        if let Some(w) = &self.qkv {
            return Gemm::new(&room.normed, &w.t()?, &flat).run_on(s);
        }
        let (nq, nk) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
        let [q, k, v] = [flat.narrow(1, 0, nq)?, flat.narrow(1, nq, nk)?, flat.narrow(1, nq + nk, nk)?];
        match [&self.q, &self.k, &self.v] {
            [Matrix::Quantized(wq), Matrix::Quantized(wk), Matrix::Quantized(wv)]
                if wq.format() == wk.format() && wk.format() == wv.format() =>
            {
                QuantizedQkv::new(&room.normed, [wq, wk, wv], [&q, &k, &v]).run_on(s)?;
            }
            all => {
                for (w, y) in all.into_iter().zip([&q, &k, &v]) {
                    w.multiply(s, &room.normed, y, false)?;
                }
            }
        }
        Ok(())
    }

    /// `gate = act(normed Wg^T) * (normed Wu^T)`.
    fn gated(&self, s: &mut Stream, c: &ModelConfig, room: &Room) -> tessl::Result<()> {
        let activation = match c.architecture {
            Architecture::Gemma3 => Activation::GeluTanh,
            _ => Activation::Silu,
        };
        match (&self.gate, &self.up) {
            (Matrix::Quantized(gate), Matrix::Quantized(up)) if gate.format() == up.format() => {
                QuantizedGlu::new(&room.normed, gate, up, &room.gate, activation).run_on(s)?;
            }
            (Matrix::Dense(gate), Matrix::Dense(up)) => {
                let (gate, up) = (gate.t()?, up.t()?);
                Gemm::new(&room.normed, &gate, &room.gate).up(&up).activation(activation).run_on(s)?;
            }
            (gate, up) => {
                gate.multiply(s, &room.normed, &room.gate, false)?;
                up.multiply(s, &room.normed, &room.up, false)?;
                Glu::new(&room.gate, &room.up, &room.gate, activation).run_on(s)?;
            }
        }
        Ok(())
    }

    /// `x += y W^T`; or y W^T, whose norm is then owed.
    fn add<'a>(
        &self,
        s: &mut Stream,
        w: &Matrix,
        y: &Tensor,
        norm: Option<&'a Tensor>,
        room: &Room,
        hidden: &mut Hidden<'a>,
    ) -> tessl::Result<()> {
        hidden.owed = norm;
        match norm {
            None => w.multiply(s, y, hidden.x, true),
            Some(_) => w.multiply(s, y, &room.normed, false),
        }
    }
}

/// GGUF files of Llama have the rows of q and k in the order that pairs neighbours.
fn style(c: &ModelConfig) -> RopeStyle {
    if c.architecture == Architecture::Llama { RopeStyle::Interleaved } else { RopeStyle::HalfSplit }
}

/// [T, ..] as [1, T, ..].
fn one_sequence(t: &Tensor) -> tessl::Result<Tensor> {
    let (shape, strides) = (t.shape(), t.strides());
    t.view(&[&[1], shape].concat(), &[&[strides[0]], strides].concat(), 0)
}
