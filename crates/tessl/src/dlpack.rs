//! Sharing memory with other array libraries through DLPack (feature `dlpack`): PyTorch, NumPy, JAX, candle, burn.
//!
//! A [`Dlpack`] is a tensor that somebody else may use in place; nothing is copied. The crate `dlpark`, exported here,
//! owns structures and lifetimes.
//!
//! | tessl | DLPack |
//! | --- | --- |
//! | f32, f16 | float 32, 16 |
//! | bf16 | bfloat 16 |
//! | i8, i32, u8, u32 | int 8, 32, unsigned int 8, 32 |
//! | f8e4m3, f8e5m2 | float8_e4m3fn, float8_e5m2 |
//! | device `cpu`, `cuda:N` | kDLCPU, kDLCUDA N |
//!
//! ```
//! use tessl::{Device, GpuRuntime};
//! let rt = GpuRuntime::with_device(&Device::cpu())?;
//! let x = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
//! let shared = x.t()?.to_dlpack()?; // give `shared.into_raw()` to another library
//! // SAFETY: nobody else uses the memory.
//! let back = unsafe { rt.from_dlpack(shared)? };
//! assert_eq!(back.read::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
//! # Ok::<(), tessl::Error>(())
//! ```

pub use dlpark;
pub use dlpark::versioned::Dlpack;

use crate::device::DeviceKind;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::memory::BufferKind;
use crate::runtime::GpuRuntime;
use crate::stream::Access;
use crate::tensor::Tensor;
use dlpark::DlpackFlags;
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice};
use dlpark::metadata::Dynamic;

/// Both names of each element type.
const TYPES: [(DType, DLDataTypeCode, u8); 9] = [
    (DType::F32, DLDataTypeCode::FLOAT, 32),
    (DType::F16, DLDataTypeCode::FLOAT, 16),
    (DType::Bf16, DLDataTypeCode::BFLOAT, 16),
    (DType::I8, DLDataTypeCode::INT, 8),
    (DType::U8, DLDataTypeCode::UINT, 8),
    (DType::I32, DLDataTypeCode::INT, 32),
    (DType::U32, DLDataTypeCode::UINT, 32),
    (DType::F8E4M3, DLDataTypeCode::FLOAT8_E4M3FN, 8),
    (DType::F8E5M2, DLDataTypeCode::FLOAT8_E5M2, 8),
];

/// The device as DLPack names it; `None` where memory has no address that others could use.
fn device(rt: &GpuRuntime) -> Option<DLDevice> {
    let name = rt.device();
    match rt.info().kind {
        DeviceKind::Cpu => Some(DLDevice::CPU),
        DeviceKind::Cuda => name.rsplit(':').next().and_then(|index| index.parse().ok()).map(DLDevice::cuda),
        _ => None,
    }
}

impl Tensor {
    /// This view for another library, which shares the memory and keeps it alive. Waits until no unfinished command
    /// reads or writes it, so that the data is there for any stream of the consumer.
    ///
    /// What the consumer does to the memory is not known to tessl: it must have finished before commands use the memory
    /// again, and before the handle is released.
    ///
    /// # Errors
    /// `Unsupported` on devices other than `cpu` and `cuda` and for `Bump` memory, which is reused after its step;
    /// `Expired`, `Forked`, and what waiting reports.
    pub fn to_dlpack(&self) -> Result<Dlpack> {
        let op = "Tensor::to_dlpack";
        let rt = self.runtime();
        self.check_usable(op, "tensor", rt)?;
        let kind = rt.info().kind.name();
        let device = device(rt).ok_or_else(|| Error::unsupported(op, "sharing memory by address", kind))?;
        if self.buffer_kind() == BufferKind::Bump {
            return Err(Error::unsupported(op, "sharing Bump memory, which ends with its step", kind));
        }
        drop(rt.host_access(self, Access::Write, op)?);
        let (_, code, bits) =
            TYPES.into_iter().find(|(d, ..)| *d == self.dtype()).expect("INVARIANT: every type is listed");
        let numbers = |list: &[usize]| list.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect::<Vec<_>>();
        let (shape, strides) = (numbers(self.shape()), numbers(self.strides()));
        let mut shared = Dynamic::new(shape.as_slice(), strides.as_slice())
            .initialize(Box::new(self.clone()))
            .map_err(|e| Error::layout(op, "tensor", e, "shape and strides fit into 63 bits"))?;
        let address = self.memory().raw().device + self.byte_offset();
        shared.set_device(device).set_dtype(DLDataType::new(code, bits, 1)).set_data(address as *mut _);
        // SAFETY: device, type and address are set and describe memory that the boxed tensor keeps alive; shape and
        // strides belong to the handle.
        Ok(unsafe { shared.finish() })
    }
}

impl GpuRuntime {
    /// A tensor over the memory of another library, which stays alive until the last tensor and the last command that
    /// use it are gone.
    ///
    /// # Safety
    /// The handle tells the truth about its memory. Until the tensor is gone, nobody else writes the memory, or reads
    /// what commands write, without waiting for them; work of others on it has finished before this call.
    ///
    /// # Errors
    /// `Unsupported` for memory of another device, element types that tessl lacks, memory that is read-only, and steps
    /// backwards; `Layout` for a handle that contradicts itself or an address that is not a multiple of the element's
    /// size. The handle is released.
    pub unsafe fn from_dlpack(&self, shared: Dlpack) -> Result<Tensor> {
        let op = "GpuRuntime::from_dlpack";
        let kind = self.info().kind.name();
        let view = shared.validate().map_err(|e| Error::layout(op, "tensor", e, "a sound DLPack tensor"))?;
        if device(self) != Some(view.device()) {
            let what = format!("memory of DLPack device {}, {}", view.device().device_type.0, view.device().device_id);
            return Err(Error::unsupported(op, what, kind));
        }
        if shared.flags().contains(DlpackFlags::READ_ONLY) {
            return Err(Error::unsupported(op, "read-only memory (copy it first)", kind));
        }
        let given = view.dtype();
        let dtype = TYPES.into_iter().find(|&(_, code, bits)| DLDataType::new(code, bits, 1) == given);
        let (dtype, ..) = dtype.ok_or_else(|| {
            let what = format!("DLPack type {} of {} bits and {} lanes", given.code.0, given.bits, given.lanes);
            Error::unsupported(op, what, kind)
        })?;
        let numbers = |list: &[i64]| list.iter().map(|&n| usize::try_from(n).ok()).collect::<Option<Vec<_>>>();
        let strides = view.strides_or_compact().map_err(|e| Error::layout(op, "tensor", e, "a sound DLPack tensor"))?;
        let (Some(shape), Some(strides)) = (numbers(view.shape()), numbers(&strides)) else {
            return Err(Error::unsupported(op, "steps backwards (copy the tensor first)", kind));
        };
        if shape.contains(&0) {
            return self.uninit(dtype, &shape, BufferKind::Cold);
        }
        let extent = || {
            let last =
                shape.iter().zip(&strides).try_fold(0usize, |at, (&d, &s)| at.checked_add((d - 1).checked_mul(s)?))?;
            last.checked_add(1)?.checked_mul(dtype.size()).filter(|&bytes| isize::try_from(bytes).is_ok())
        };
        let bytes = extent().ok_or_else(|| {
            Error::layout(
                op,
                "tensor",
                format!("shape {shape:?}, strides {strides:?}"),
                "its size in bytes must fit 63 bits",
            )
        })?;
        let offset = usize::try_from(view.byte_offset()).ok();
        let address = offset.and_then(|offset| (view.data_ptr() as usize).checked_add(offset)).unwrap_or(0);
        if address % dtype.size() != 0 {
            let expected = format!("a multiple of {}, the size of {dtype}", dtype.size());
            return Err(Error::layout(op, "tensor", format!("address {address:#x}"), expected));
        }
        // SAFETY: the caller vouches for the memory, and the handle keeps it alive.
        let flat = unsafe { self.from_external(address as *mut u8, bytes, shared)? };
        flat.bitcast(dtype)?.view(&shape, &strides, 0)
    }
}
