//! `tessl gemm`: a product of matrices from files.

use crate::error::{CliError, Result};
use crate::format::{self, Kind, Output, Source, Spec, load, store};
use crate::spotcheck;
use crate::ui::{self, Progress};
use serde_json::json;
use std::time::Instant;
use tessl::plan::{Desc, plan};
use tessl::{Activation, BufferKind, DType, Device, Gemm, GemmBackend, GpuRuntime, Precision, Tensor};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
C = activation(alpha * A B + beta * C_IN + bias), written as one array.
FILE is file.npy (f32, f16), file.safetensors, or file.safetensors:NAME (f32, f16, bf16). Three axes are a batch.
Without --dtype, A and B must have the same type.")]
pub(crate) struct Args {
    /// A, [m, k] or [batch, m, k]
    #[arg(value_name = "A")]
    a: Spec,
    /// B, [k, n] or [batch, k, n]
    #[arg(value_name = "B")]
    b: Spec,
    /// Where C goes; in a safetensors file under NAME, or `c`
    #[arg(short, long, value_name = "FILE")]
    output: Spec,
    /// Multiply as this type, converting A and B: f32, f16 or bf16
    #[arg(long)]
    dtype: Option<DType>,
    /// Type of C: f32, f16 or bf16 [default: that of A and B; f32 where npy has no bf16]
    #[arg(long, value_name = "DTYPE")]
    out_dtype: Option<DType>,
    /// A is stored transposed, [k, m]
    #[arg(long)]
    ta: bool,
    /// B is stored transposed, [n, k], as weights often are
    #[arg(long)]
    tb: bool,
    #[arg(long, default_value_t = 1.0, allow_negative_numbers = true)]
    alpha: f32,
    /// Factor of the array of --c-in
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, requires = "c_in")]
    beta: f32,
    /// The old C, [m, n]
    #[arg(long, value_name = "FILE", requires = "beta")]
    c_in: Option<Spec>,
    /// One value per column, [n]
    #[arg(long, value_name = "FILE")]
    bias: Option<Spec>,
    /// none, relu, silu, gelu or gelu-tanh
    #[arg(long, default_value = "none")]
    activation: Activation,
    /// tensorops (matrix units) or simdgroup (the portable path)
    #[arg(long, default_value = "tensorops")]
    backend: GemmBackend,
    /// exact, split or relaxed (f32 only)
    #[arg(long, default_value = "exact")]
    precision: Precision,
    /// cpu, cuda[:N] or metal[:N] [default: TESSL_DEVICE, else the best present]
    #[arg(long)]
    device: Option<Device>,
    /// Compare a sample of the results with sums in f64 before anything is written
    #[arg(long)]
    check: bool,
    /// Replace the output file
    #[arg(long)]
    force: bool,
    /// Print what was done as JSON
    #[arg(long)]
    json: bool,
}

/// Opened files, of types that go together.
struct Inputs {
    a: Source,
    b: Source,
    c: Option<Source>,
    bias: Option<Source>,
    input: DType,
    output: DType,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let inputs = open(args)?;
    format::preflight(&args.output, inputs.output)?;
    let output = Output::create(&args.output.path, args.force)?;
    let rt = crate::open(args.device.as_ref(), None)?;
    let progress = Progress::new();
    let work = Work::load(&rt, args, inputs, &progress)?;
    let flop = work.flop();
    progress.step(format!("multiplying {} on {}", work.sizes(), rt.device()));
    let started = Instant::now();
    let call = work.call(args);
    let desc = call.desc()?;
    call.run()?;
    rt.synchronize()?;
    let seconds = started.elapsed().as_secs_f64();
    let checked = if args.check {
        progress.step("checking against f64");
        Some(spotcheck::sample(&work.problem(args), spotcheck::SAMPLES)?)
    } else {
        None
    };
    store(&work.c, &args.output, output, &progress)?;
    drop(progress);
    let gflops = if seconds > 0.0 { flop / seconds / 1e9 } else { 0.0 };
    if args.json {
        let plan = plan(&Desc::Gemm(desc), rt.profile()).ok();
        return ui::json(&json!({
            "schema": 1, "output": args.output.path, "shape": work.c.shape(), "dtype": work.c.dtype(),
            "device": rt.device(), "device_name": rt.device_name(), "seconds": seconds, "gflops": gflops,
            "plan": plan, "check": checked,
        }));
    }
    let speed = if flop >= 1e6 { format!(", {}", ui::flops(gflops * 1e9)) } else { String::new() };
    let check = checked.map_or_else(String::new, |c| format!("; {} results agree with f64", c.samples));
    ui::out(format_args!(
        "{}: {:?} {} from {} on {} in {}{speed}{check}",
        args.output.path.display(),
        work.c.shape(),
        work.c.dtype(),
        work.sizes(),
        rt.device(),
        ui::seconds(seconds),
    ))
}

fn open(args: &Args) -> Result<Inputs> {
    let a = Source::open(&args.a)?;
    let b = Source::open(&args.b)?;
    let c = args.c_in.as_ref().map(Source::open).transpose()?;
    let bias = args.bias.as_ref().map(Source::open).transpose()?;
    for source in [&a, &b] {
        if !(2..=3).contains(&source.shape.len()) {
            let what = format!("is {:?}; a matrix has two axes, a batch of them three", source.shape);
            return Err(CliError::file(&source.path, what));
        }
    }
    let input = match args.dtype {
        Some(dtype) if !dtype.is_float() => {
            return Err(CliError::Usage(format!("gemm: --dtype {dtype} is not f32, f16 or bf16")));
        }
        Some(dtype) => dtype,
        None if a.dtype == b.dtype => a.dtype,
        None => {
            let (a, b) = (a.dtype, b.dtype);
            return Err(CliError::Usage(format!("gemm: A is {a} but B is {b}; give --dtype {a} to convert B")));
        }
    };
    let output = args.out_dtype.unwrap_or(match args.output.kind {
        // What npy cannot hold becomes f32, which holds it exactly.
        Kind::Npy if input == DType::Bf16 => DType::F32,
        _ => input,
    });
    if !output.is_float() {
        return Err(CliError::Usage(format!("gemm: --out-dtype {output} is not f32, f16 or bf16")));
    }
    Ok(Inputs { a, b, c, bias, input, output })
}

/// The operands on the device.
struct Work {
    a: Tensor,
    b: Tensor,
    c: Tensor,
    c_in: Option<Tensor>,
    bias: Option<Tensor>,
}

impl Work {
    fn load(rt: &GpuRuntime, args: &Args, mut inputs: Inputs, progress: &Progress) -> Result<Self> {
        let turned = |t: Tensor, turn: bool| if turn { t.t() } else { Ok(t) };
        let a = turned(load(rt, &mut inputs.a, inputs.input, progress)?, args.ta)?;
        let b = turned(load(rt, &mut inputs.b, inputs.input, progress)?, args.tb)?;
        let (rows, columns) = (a.shape()[a.rank() - 2], b.shape()[b.rank() - 1]);
        let batch = [&a, &b].into_iter().filter(|t| t.rank() == 3).map(|t| t.shape()[0]).max();
        let shape: Vec<usize> = batch.into_iter().chain([rows, columns]).collect();
        let c_in = inputs.c.as_mut().map(|c| load(rt, c, inputs.output, progress)).transpose()?;
        if let (Some(c_in), Some(source)) = (&c_in, &inputs.c)
            && c_in.shape() != shape
        {
            return Err(CliError::file(&source.path, format!("is {:?} but A B is {shape:?}", c_in.shape())));
        }
        let bias = inputs.bias.as_mut().map(|b| load(rt, b, DType::F32, progress)).transpose()?;
        let c = rt.uninit(inputs.output, &shape, BufferKind::Hot)?;
        if let Some(old) = &c_in {
            copy(old, &c)?;
        }
        Ok(Work { a, b, c, c_in, bias })
    }

    fn call(&self, args: &Args) -> Gemm<'_> {
        let mut call = Gemm::new(&self.a, &self.b, &self.c)
            .alpha(args.alpha)
            .beta(args.beta)
            .activation(args.activation)
            .backend(args.backend)
            .precision(args.precision);
        if let Some(bias) = &self.bias {
            call = call.bias(bias);
        }
        call
    }

    fn problem<'a>(&'a self, args: &Args) -> spotcheck::Problem<'a> {
        spotcheck::Problem {
            a: &self.a,
            b: &self.b,
            c: &self.c,
            c_in: self.c_in.as_ref(),
            bias: self.bias.as_ref(),
            alpha: args.alpha,
            beta: args.beta,
            activation: args.activation,
            precision: args.precision,
        }
    }

    #[allow(clippy::cast_precision_loss)]
    fn flop(&self) -> f64 {
        2.0 * self.c.len() as f64 * self.a.shape()[self.a.rank() - 1] as f64
    }

    fn sizes(&self) -> String {
        format!("{} {:?} x {:?}", self.a.dtype(), self.a.shape(), self.b.shape())
    }
}

/// Copies through the host, a row at a time where `old` is not contiguous.
fn copy(old: &Tensor, new: &Tensor) -> Result<()> {
    match old.dtype() {
        DType::F16 => new.write(&old.read::<half::f16>()?)?,
        DType::Bf16 => new.write(&old.read::<half::bf16>()?)?,
        _ => new.write(&old.read::<f32>()?)?,
    }
    Ok(())
}
