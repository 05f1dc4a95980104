//! Memory shared through DLPack, out and in again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tessl::dlpack::Dlpack;
use tessl::dlpack::dlpark::DlpackFlags;
use tessl::dlpack::dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice};
use tessl::dlpack::dlpark::metadata::Dynamic;
use tessl::nn::Scale;
use tessl::{BufferKind, DType, Device, GpuRuntime, Tensor};

fn cpu() -> GpuRuntime {
    GpuRuntime::with_device(&Device::cpu()).unwrap()
}

/// Counts how often handles have been released.
struct Owner(Arc<AtomicUsize>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A handle as another library would make it.
struct Foreign {
    data: Vec<f32>,
    shape: Vec<i64>,
    strides: Vec<i64>,
    device: DLDevice,
    dtype: DLDataType,
    offset: u64,
    flags: DlpackFlags,
    released: Arc<AtomicUsize>,
}

impl Foreign {
    fn new(shape: &[i64], strides: &[i64]) -> Self {
        Foreign {
            data: (0u16..64).map(f32::from).collect(),
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            device: DLDevice::CPU,
            dtype: DLDataType::F32,
            offset: 0,
            flags: DlpackFlags::empty(),
            released: Arc::default(),
        }
    }

    fn share(&mut self) -> Dlpack {
        let owner = Box::new(Owner(self.released.clone()));
        let mut shared = Dynamic::new(self.shape.as_slice(), self.strides.as_slice()).initialize(owner).unwrap();
        shared.set_device(self.device).set_dtype(self.dtype).set_byte_offset(self.offset);
        shared.set_data(self.data.as_mut_ptr().cast());
        shared.set_flags(self.flags).unwrap();
        // SAFETY: the fields describe `data`, which outlives the handle in every test.
        unsafe { shared.finish() }
    }

    fn import(&mut self, rt: &GpuRuntime) -> tessl::Result<Tensor> {
        // SAFETY: as in `share`; nobody else touches the data meanwhile.
        unsafe { rt.from_dlpack(self.share()) }
    }
}

#[test]
fn every_type_comes_back_in_place() {
    let rt = cpu();
    for dtype in DType::ALL {
        let t = rt.zeros(dtype, &[3, 4], BufferKind::Cold).unwrap();
        let shared = t.to_dlpack().unwrap();
        // SAFETY: nobody else uses the memory.
        let back = unsafe { rt.from_dlpack(shared).unwrap() };
        assert_eq!((back.dtype(), back.shape(), back.strides()), (dtype, &[3, 4][..], &[4, 1][..]));
        if dtype == DType::F32 {
            t.write(&[2.5f32; 12]).unwrap();
            rt.synchronize().unwrap(); // the two tensors do not know of each other
            assert_eq!(back.read::<f32>().unwrap(), [2.5; 12], "the same memory");
        }
    }
}

#[test]
fn views_keep_their_shape_and_writers_are_waited_for() {
    let rt = cpu();
    let data: Vec<f32> = (0u8..24).map(f32::from).collect();
    let x = rt.from_slice(&data, &[2, 3, 4]).unwrap();
    Scale::new(&x, 2.0, &x).run().unwrap();
    let view = x.select(1, 2).unwrap().t().unwrap();
    let shared = view.to_dlpack().unwrap();
    let told = shared.validate().unwrap();
    assert_eq!((told.shape(), told.strides()), (&[4, 2][..], Some(&[1, 12][..])));
    // SAFETY: the handle describes memory of `x`, whose writer has been waited for.
    let first = unsafe { told.data_ptr().cast::<f32>().read() };
    assert!((first - 16.0).abs() < 1e-6, "{first}");
    // SAFETY: nobody else uses the memory.
    let back = unsafe { rt.from_dlpack(shared).unwrap() };
    drop((x, view));
    assert_eq!(back.read::<f32>().unwrap(), [16.0, 40.0, 18.0, 42.0, 20.0, 44.0, 22.0, 46.0]);
}

#[test]
fn memory_lives_as_long_as_its_users() {
    let rt = cpu();
    let mut foreign = Foreign::new(&[4, 3], &[8, 1]);
    let t = foreign.import(&rt).unwrap();
    assert_eq!(t.read::<f32>().unwrap()[..4], [0.0, 1.0, 2.0, 8.0]);
    Scale::new(&t, 10.0, &t).run().unwrap();
    let row = t.narrow(0, 3, 1).unwrap();
    drop(t);
    assert_eq!(foreign.released.load(Ordering::SeqCst), 0, "a view is left");
    assert_eq!(row.read::<f32>().unwrap(), [240.0, 250.0, 260.0]);
    drop(row);
    rt.synchronize().unwrap();
    assert_eq!(foreign.released.load(Ordering::SeqCst), 1);
    assert!((foreign.data[24] - 240.0).abs() < 1e-6 && (foreign.data[3] - 3.0).abs() < 1e-6);

    // What tessl gives away stays alive with the handle.
    let live = rt.memory_stats().live;
    let shared = rt.alloc_tensor_f32(&[1000]).unwrap().to_dlpack().unwrap();
    assert!(rt.memory_stats().live > live);
    drop(shared);
    assert_eq!(rt.memory_stats().live, live);
}

#[test]
fn what_cannot_be_used_is_refused_and_released() {
    let rt = cpu();
    let refuse = |what: &str, foreign: &mut Foreign, expected: &str| {
        let before = rt.dispatch_count();
        let error = foreign.import(&rt).expect_err(what).to_string();
        assert!(error.contains(expected), "{what}: {error}");
        assert_eq!(foreign.released.load(Ordering::SeqCst), 1, "{what} was not released");
        assert_eq!(rt.dispatch_count(), before);
    };
    let plain = || Foreign::new(&[2, 3], &[3, 1]);
    refuse("gpu", &mut Foreign { device: DLDevice::cuda(0), ..plain() }, "device 2, 0");
    refuse("backwards", &mut Foreign::new(&[2, 3], &[3, -1]), "backwards");
    refuse("read-only", &mut Foreign { flags: DlpackFlags::READ_ONLY, ..plain() }, "read-only");
    refuse("f64", &mut Foreign { dtype: DLDataType::F64, ..plain() }, "64 bits");
    refuse("lanes", &mut Foreign { dtype: DLDataType::new(DLDataTypeCode::FLOAT, 32, 2), ..plain() }, "2 lanes");
    refuse("bool", &mut Foreign { dtype: DLDataType::BOOL, ..plain() }, "type 6");
    refuse("address", &mut Foreign { offset: 2, ..plain() }, "multiple of 4");
    refuse("size", &mut Foreign::new(&[i64::MAX, 2], &[1 << 40, 1]), "");
    let mut empty = Foreign::new(&[0, 3], &[3, 1]);
    assert_eq!(empty.import(&rt).unwrap().shape(), [0, 3]);
    let mut one = Foreign::new(&[], &[]);
    assert_eq!(one.import(&rt).unwrap().read::<f32>().unwrap(), [0.0]);

    let null = GpuRuntime::with_device(&Device::null("h200")).unwrap();
    let error = null.alloc_tensor_f32(&[2]).unwrap().to_dlpack().err().unwrap();
    assert!(error.to_string().contains("sharing memory by address"), "{error}");
    let mut stream = rt.stream().unwrap();
    let refused = stream.step(|s| s.bump(DType::F32, &[4])?.to_dlpack()).err().unwrap();
    assert!(refused.to_string().contains("Bump"), "{refused}");
}
