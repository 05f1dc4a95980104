//! Wrong calls: a typed error that names op and operand, no panic, nothing launched, and the next good call works.

mod caches;
mod codes;
mod experts;
mod movement;
mod norms;
mod ops;
mod positions;
mod products;
mod qkv;
mod quant;
mod rowwise;
mod sampling;
mod state;
mod tensors;

use crate::env::{Env, Outcome};
use crate::suite::Case;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tessl::{DType, Error, Gemm, GpuRuntime, Tensor};

type Result<T = ()> = std::result::Result<T, String>;

fn text(error: Error) -> String {
    error.to_string()
}

/// The variant that a wrong call must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Shape,
    Layout,
    DType,
    Overlap,
    WrongRuntime,
    Scalar,
    TooLarge,
    Capture,
    Expired,
    Parse,
    Name,
    Unsupported,
    Unavailable,
    OutOfMemory,
}

fn kind_of(error: &Error) -> Option<Kind> {
    Some(match error {
        Error::Shape { .. } => Kind::Shape,
        Error::Layout { .. } => Kind::Layout,
        Error::DType { .. } => Kind::DType,
        Error::Overlap { .. } => Kind::Overlap,
        Error::WrongRuntime { .. } => Kind::WrongRuntime,
        Error::Scalar { .. } => Kind::Scalar,
        Error::TooLarge { .. } => Kind::TooLarge,
        Error::Capture { .. } => Kind::Capture,
        Error::Expired { .. } => Kind::Expired,
        Error::Parse { .. } => Kind::Parse,
        Error::Name { .. } => Kind::Name,
        Error::Unsupported { .. } => Kind::Unsupported,
        Error::Unavailable(_) => Kind::Unavailable,
        Error::OutOfMemory { .. } => Kind::OutOfMemory,
        _ => return None,
    })
}

/// Small operands for good and bad calls.
struct Bench<'e> {
    env: &'e Env,
    /// A runtime that is not the one under test.
    other: GpuRuntime,
    /// [2, 3], [3, 4], [2, 4] and [4] of f32.
    a: Tensor,
    b: Tensor,
    c: Tensor,
    bias: Tensor,
    failures: Vec<String>,
    checks: usize,
}

impl<'e> Bench<'e> {
    fn new(env: &'e Env) -> Result<Self> {
        let rt = &env.rt;
        let ones = |shape: &[usize]| rt.from_slice(&vec![1.0f32; shape.iter().product()], shape).map_err(text);
        let other = GpuRuntime::with_device(&tessl::Device::null("m2")).map_err(text)?;
        let (a, b, c, bias) = (ones(&[2, 3])?, ones(&[3, 4])?, ones(&[2, 4])?, ones(&[4])?);
        Ok(Bench { env, other, a, b, c, bias, failures: Vec::new(), checks: 0 })
    }

    fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        self.env.rt.zeros(dtype, shape, tessl::BufferKind::Cold).map_err(text)
    }

    /// `call` must fail as `kind` with a message that contains every one of `words`.
    fn reject<T>(&mut self, what: &str, kind: Kind, words: &[&str], call: impl FnOnce() -> tessl::Result<T>) {
        self.checks += 1;
        let before = self.env.rt.dispatch_count();
        let outcome = catch_unwind(AssertUnwindSafe(call));
        let mut complain = |text: String| self.failures.push(format!("{what}: {text}"));
        match outcome {
            Err(_) => complain("panicked".into()),
            Ok(Ok(_)) => complain("was accepted".into()),
            Ok(Err(error)) => {
                let message = error.to_string();
                if kind_of(&error) != Some(kind) {
                    complain(format!("gave `{message}` ({error:?}) instead of {kind:?}"));
                }
                if let Some(missing) = words.iter().find(|w| !message.contains(**w)) {
                    complain(format!("`{message}` does not say {missing}"));
                }
                if message.contains('\n') {
                    complain(format!("`{message}` is not one line"));
                }
            }
        }
        if self.env.rt.dispatch_count() != before {
            complain("something was launched".into());
        }
        if let Err(error) = self.good_call() {
            self.failures.push(format!("{what}: the next good call failed: {error}"));
        }
    }

    /// `call` must work.
    fn accept<T>(&mut self, what: &str, call: impl FnOnce() -> tessl::Result<T>) {
        self.checks += 1;
        match catch_unwind(AssertUnwindSafe(call)) {
            Err(_) => self.failures.push(format!("{what}: panicked")),
            Ok(Err(error)) => self.failures.push(format!("{what}: refused: {error}")),
            Ok(Ok(_)) => {}
        }
    }

    fn good_call(&self) -> Result {
        Gemm::new(&self.a, &self.b, &self.c).run().map_err(text)?;
        if self.env.computes && self.c.read::<f32>().map_err(text)? != [3.0; 8] {
            return Err("wrong numbers".into());
        }
        Ok(())
    }

    fn finish(self) -> Result {
        if self.failures.is_empty() { Ok(()) } else { Err(self.failures.join("\n")) }
    }
}

fn case(name: &str, op: &'static str, body: fn(&mut Bench<'_>) -> Result) -> Case {
    Case::new(format!("adversarial/{name}"), op, move |env: &Env| {
        let run = || {
            let mut bench = Bench::new(env)?;
            body(&mut bench)?;
            bench.finish()
        };
        Outcome::from(run())
    })
    .tagged(&["quick", "plans"])
}

/// Cases of this page.
pub(crate) fn cases() -> Vec<Case> {
    vec![
        case("gemm", "gemm", ops::gemm_operands),
        case("gemm_epilogue", "gemm", ops::epilogues),
        case("gemm_batched", "gemm", ops::gemm_batched_call),
        case("gemm_runtime", "gemm", ops::gemm_runtime),
        case("gemm_fused", "gemm", products::fused),
        case("gemm_gated", "gemm", products::gated),
        case("gemm_packed", "gemm", products::packed),
        case("gemm_groups", "gemm", products::groups),
        case("gemm_eight_bits", "gemm", products::eight_bits),
        case("rms_norm", "rms_norm", ops::rms_norm),
        case("norms", "layer_norm", norms::norms),
        case("norm_options", "rms_norm", norms::options),
        case("mlp", "glu", rowwise::mlp),
        case("elementwise", "add", rowwise::arithmetic),
        case("rope", "rope", positions::rope),
        case("embedding", "embedding", positions::embedding),
        case("copy", "copy", movement::copies),
        case("rows_by_id", "scatter_rows", movement::rows),
        case("sort_by_expert", "sort_by_expert", experts::sort),
        case("combine_experts", "combine_experts", experts::combine),
        case("top_k", "top_k", sampling::top_k),
        case("sample", "sample", sampling::sample),
        case("quantized_matmul", "quantized_matmul", quant::matmul),
        case("quantized_glu_qkv", "quantized_glu", quant::glu_and_qkv),
        case("quantized_embedding", "quantized_embedding", quant::embedding),
        case("norm_qkv_rope", "norm_qkv_rope", qkv::calls),
        case("attention", "attention", caches::attention),
        case("kv_store", "kv_store", caches::kv_store),
        case("attention_codes", "attention", codes::attention),
        case("kv_store_codes", "kv_store", codes::kv_store),
        case("ring_densify", "ring_densify", caches::ring_densify),
        case("softmax", "softmax", rowwise::softmaxes),
        case("reductions", "row_sum", rowwise::reductions),
        case("factors_and_types", "cast", rowwise::factors_and_types),
        case("tensors", "tensor", tensors::views),
        case("transfers", "tensor", tensors::transfers),
        case("allocation", "tensor", tensors::allocation),
        case("empty_and_huge", "tensor", tensors::empty_and_huge),
        case("external", "tensor", tensors::external),
        case("streams", "api", state::streams),
        case("captures", "api", state::captures),
        case("steps", "api", state::steps),
        case("libraries", "api", state::libraries),
        case("names", "api", state::names),
    ]
}
