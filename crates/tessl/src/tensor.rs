//! Tensors: strided views of device memory.

use crate::dtype::{DType, Element};
use crate::error::{Error, Result};
use crate::memory::{Allocation, BufferKind};
use crate::runtime::GpuRuntime;
use crate::stream::{Access, Binding, Rect};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// Sizes or strides of a tensor; up to four stay inline.
pub(crate) type Dims = SmallVec<[usize; 4]>;

/// A number that is known on the host, or a one-element tensor that the device reads when the command runs.
#[derive(Clone, Copy, Debug)]
pub enum Scalar<'a, T> {
    /// The value itself.
    Host(T),
    /// A tensor of one element.
    Device(&'a Tensor),
}

impl<T> From<T> for Scalar<'_, T> {
    fn from(value: T) -> Self {
        Scalar::Host(value)
    }
}

/// A view of device memory: element type, shape and strides. Cloning a tensor copies the view, not the data.
///
/// All methods that make views check their arguments and never touch the data.
///
/// ```
/// use tessl::{Device, GpuRuntime, DType};
/// let rt = GpuRuntime::with_device(&Device::cpu())?;
/// let x = rt.from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], &[2, 3])?;
/// assert_eq!(x.t()?.read::<f32>()?, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
/// assert_eq!(x.narrow(1, 1, 2)?.read::<f32>()?, [2.0, 3.0, 5.0, 6.0]);
/// # Ok::<(), tessl::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    rt: GpuRuntime,
    memory: Arc<Allocation>,
    dtype: DType,
    shape: Dims,
    /// In elements.
    strides: Dims,
    /// In bytes.
    offset: u64,
    /// The step of the slab that this tensor lives in.
    generation: Option<u64>,
    /// The bytes that the view touches; kept because every call asks for them.
    rect: Rect,
    /// Two indices name one element.
    repeats: bool,
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?}, strides {:?}, {})", self.dtype, self.shape, self.strides, self.rt.device())
    }
}

/// Bytes of a contiguous tensor, or a typed error.
pub(crate) fn bytes_of(op: &'static str, dtype: DType, shape: &[usize]) -> Result<u64> {
    shape
        .iter()
        .try_fold(dtype.size() as u64, |bytes, &d| bytes.checked_mul(d as u64))
        .filter(|&bytes| bytes <= isize::MAX as u64)
        .ok_or_else(|| Error::shape(op, "shape", format_args!("{shape:?}"), "its size in bytes must fit 63 bits"))
}

/// Row-major strides.
fn contiguous(shape: &[usize]) -> Dims {
    let mut strides: Dims = SmallVec::from_elem(1, shape.len());
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i].saturating_mul(shape[i].max(1));
    }
    strides
}

impl Tensor {
    pub(crate) fn new(rt: &GpuRuntime, memory: Arc<Allocation>, dtype: DType, shape: &[usize], offset: u64) -> Self {
        let strides = contiguous(shape);
        let (rect, repeats) = (Rect::linear(0, 0), false);
        let shape = shape.into();
        Tensor { rt: rt.clone(), memory, dtype, shape, strides, offset, generation: None, rect, repeats }.placed()
    }

    pub(crate) fn expires(mut self, generation: u64) -> Self {
        self.generation = Some(generation);
        self
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance between neighbours along each axis, in elements. Broadcast axes have 0.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Distance of the first element from the start of the memory, in elements.
    pub fn offset(&self) -> usize {
        to_usize(self.offset / self.dtype.size() as u64)
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        // The other extents of an empty view may be too large to multiply.
        if self.is_empty() { 0 } else { self.shape.iter().product() }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the elements lie side by side in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.is_empty()
            || self
                .shape
                .iter()
                .zip(&self.strides)
                .zip(contiguous(&self.shape))
                .all(|((&d, &s), want)| d == 1 || s == want)
    }

    /// The runtime this tensor belongs to.
    pub fn runtime(&self) -> &GpuRuntime {
        &self.rt
    }

    /// The kind of memory behind this tensor.
    pub fn buffer_kind(&self) -> BufferKind {
        self.memory.kind()
    }

    /// Any view of the same memory: `strides` in elements, `offset` in elements from this tensor's first one.
    ///
    /// # Errors
    /// `Layout` when the ranks differ or an element would lie outside the memory.
    pub fn view(&self, shape: &[usize], strides: &[usize], offset: usize) -> Result<Tensor> {
        let op = "Tensor::view";
        let size = self.dtype.size() as u64;
        if shape.len() != strides.len() {
            let actual = format!("{} strides", strides.len());
            return Err(Error::layout(op, "strides", actual, format!("the shape {shape:?} has {} axes", shape.len())));
        }
        bytes_of(op, self.dtype, shape)?;
        let last = shape
            .iter()
            .zip(strides)
            .try_fold(offset as u64, |at, (&d, &s)| at.checked_add((d.max(1) as u64 - 1).checked_mul(s as u64)?));
        let empty = shape.contains(&0);
        let end = last
            .and_then(|l| l.checked_add(u64::from(!empty)))
            .and_then(|n| n.checked_mul(size))
            .and_then(|n| n.checked_add(self.offset));
        match end {
            Some(end) if end <= self.memory.bytes() => {}
            _ => {
                let actual = format!("shape {shape:?}, strides {strides:?}, offset {offset}");
                let room = (self.memory.bytes() - self.offset) / size;
                return Err(Error::layout(op, "view", actual, format!("the memory ends after {room} elements")));
            }
        }
        let mut view = self.clone();
        view.shape = shape.into();
        view.strides = strides.into();
        view.offset += offset as u64 * size;
        Ok(view.placed())
    }

    /// `length` indices of `axis` from `start`.
    ///
    /// # Errors
    /// `Shape` when the axis does not exist or the range passes its end.
    pub fn narrow(&self, axis: usize, start: usize, length: usize) -> Result<Tensor> {
        let op = "Tensor::narrow";
        let extent = self.extent(op, axis)?;
        if start.checked_add(length).is_none_or(|end| end > extent) {
            let actual = format!("{start}..{start}+{length} on axis {axis}");
            return Err(Error::shape(op, "range", actual, format!("the axis has {extent} elements")));
        }
        let mut view = self.clone();
        view.shape[axis] = length;
        // A view without elements stays where it is: its strides need not lie inside the memory.
        if length > 0 && !self.is_empty() {
            view.offset += start as u64 * self.strides[axis] as u64 * self.dtype.size() as u64;
        }
        Ok(view.placed())
    }

    /// The tensor at `index` of `axis`, without that axis.
    ///
    /// # Errors
    /// `Shape` when the axis or the index does not exist.
    pub fn select(&self, axis: usize, index: usize) -> Result<Tensor> {
        let mut view = self.narrow(axis, index, 1)?;
        view.shape.remove(axis);
        view.strides.remove(axis);
        Ok(view)
    }

    /// The last two axes exchanged.
    ///
    /// # Errors
    /// `Shape` for fewer than two axes.
    pub fn t(&self) -> Result<Tensor> {
        let rank = self.rank();
        if rank < 2 {
            return Err(Error::shape("Tensor::t", "self", format_args!("{:?}", self.shape), "two axes are needed"));
        }
        let mut view = self.clone();
        view.shape.swap(rank - 2, rank - 1);
        view.strides.swap(rank - 2, rank - 1);
        Ok(view)
    }

    /// The axes in another order.
    ///
    /// # Errors
    /// `Shape` when `order` does not name each axis once.
    pub fn permute(&self, order: &[usize]) -> Result<Tensor> {
        let mut sorted: Dims = order.into();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..self.rank()) {
            let expected = format!("it must name each of the {} axes once", self.rank());
            return Err(Error::shape("Tensor::permute", "order", format_args!("{order:?}"), expected));
        }
        let mut view = self.clone();
        view.shape = order.iter().map(|&i| self.shape[i]).collect();
        view.strides = order.iter().map(|&i| self.strides[i]).collect();
        Ok(view)
    }

    /// The same elements in row-major order under another shape.
    ///
    /// # Errors
    /// `Shape` when the number of elements differs, `Layout` when the elements are not side by side.
    pub fn reshape(&self, shape: &[usize]) -> Result<Tensor> {
        let op = "Tensor::reshape";
        if bytes_of(op, self.dtype, shape)? != bytes_of(op, self.dtype, &self.shape)? {
            let expected = format!("{:?} has {} elements", self.shape, self.len());
            return Err(Error::shape(op, "shape", format_args!("{shape:?}"), expected));
        }
        if !self.is_contiguous() {
            let actual = format!("{:?} with strides {:?}", self.shape, self.strides);
            return Err(Error::layout(op, "self", actual, "only contiguous tensors can be reshaped"));
        }
        let mut view = self.clone();
        view.shape = shape.into();
        view.strides = contiguous(shape);
        Ok(view.placed())
    }

    /// The same bytes as elements of another type; the last axis changes its extent to match. This is how memory
    /// imported with [`GpuRuntime::from_external`] gets its element type.
    ///
    /// # Errors
    /// `Layout` when the elements are not side by side or the first one is not aligned for `dtype`, `Shape` when the last
    /// axis does not hold whole elements of it.
    ///
    /// ```
    /// use tessl::{bf16, Device, DType, GpuRuntime};
    /// let rt = GpuRuntime::with_device(&Device::cpu())?;
    /// let bytes = rt.from_slice(&[0x80u8, 0x3f, 0x00, 0xc0], &[4])?;
    /// let x = bytes.bitcast(DType::Bf16)?;
    /// assert_eq!(x.read::<bf16>()?, [bf16::from_f32(1.0), bf16::from_f32(-2.0)]);
    /// # Ok::<(), tessl::Error>(())
    /// ```
    pub fn bitcast(&self, dtype: DType) -> Result<Tensor> {
        let op = "Tensor::bitcast";
        let (from, to) = (self.dtype.size(), dtype.size());
        if !self.is_contiguous() {
            let actual = format!("{:?} with strides {:?}", self.shape, self.strides);
            return Err(Error::layout(op, "self", actual, "only contiguous tensors can change their type"));
        }
        if !self.memory.raw().device.wrapping_add(self.offset).is_multiple_of(to as u64) {
            let actual = format!("at byte {} of its memory", self.offset);
            return Err(Error::layout(
                op,
                "self",
                actual,
                format!("{dtype} elements start at multiples of {to} bytes"),
            ));
        }
        let last = self.shape.last().copied().unwrap_or(1);
        let bytes = last.checked_mul(from).filter(|bytes| bytes % to == 0 && (from == to || self.rank() > 0));
        let Some(bytes) = bytes else {
            let expected = format!("its last axis must hold whole {dtype} elements of {to} bytes");
            return Err(Error::shape(op, "self", format_args!("{:?} of {}", self.shape, self.dtype), expected));
        };
        let mut view = self.clone();
        view.dtype = dtype;
        if let Some(extent) = view.shape.last_mut() {
            *extent = bytes / to;
        }
        view.strides = contiguous(&view.shape);
        Ok(view.placed())
    }

    /// Axes of extent 1 repeated, and new axes in front, without copying.
    ///
    /// # Errors
    /// `Shape` when an axis has neither the wanted extent nor 1.
    pub fn broadcast_to(&self, shape: &[usize]) -> Result<Tensor> {
        let op = "Tensor::broadcast_to";
        bytes_of(op, self.dtype, shape)?;
        let fail = || Error::shape(op, "self", format_args!("{:?}", self.shape), format!("{shape:?} was asked for"));
        let added = shape.len().checked_sub(self.rank()).ok_or_else(fail)?;
        let mut view = self.clone();
        view.shape = shape.into();
        view.strides = SmallVec::from_elem(0, shape.len());
        for (axis, (&have, &stride)) in self.shape.iter().zip(&self.strides).enumerate() {
            match shape[added + axis] {
                want if want == have => view.strides[added + axis] = stride,
                _ if have == 1 => {}
                _ => return Err(fail()),
            }
        }
        Ok(view.placed())
    }

    fn extent(&self, op: &'static str, axis: usize) -> Result<usize> {
        self.shape.get(axis).copied().ok_or_else(|| {
            let expected = format!("{:?} has {} axes", self.shape, self.rank());
            Error::shape(op, "axis", axis, expected)
        })
    }

    /// Copies the elements to the host in row-major order. Waits for the last writer of these bytes, for nothing else.
    ///
    /// # Errors
    /// `DType` when `T` is not the element type, the failure of a stream that wrote here, `Expired`.
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        let mut out = vec![T::zeroed(); self.len()];
        self.read_into(&mut out)?;
        Ok(out)
    }

    /// As [`read`](Self::read), into memory of the caller's.
    ///
    /// # Errors
    /// As `read`; `Shape` when `out` has another length.
    pub fn read_into<T: Element>(&self, out: &mut [T]) -> Result<()> {
        let op = "Tensor::read";
        self.check_host::<T>(op, out.len())?;
        crate::transfer::read(self, op, bytemuck::cast_slice_mut(out))
    }

    /// Copies `data`, in row-major order, into this tensor, ordered on the default stream. `data` can be reused at once.
    ///
    /// # Errors
    /// `DType`, `Shape` when the lengths differ, `Layout` for a broadcast view, `Expired`, and what encoding reports.
    pub fn write<T: Element>(&self, data: &[T]) -> Result<()> {
        let op = "Tensor::write";
        self.check_host::<T>(op, data.len())?;
        crate::transfer::write(self, op, bytemuck::cast_slice(data), None)
    }

    /// As [`write`](Self::write), ordered on `stream`.
    ///
    /// # Errors
    /// As `write`.
    pub fn write_on<T: Element>(&self, data: &[T], stream: &mut crate::Stream) -> Result<()> {
        let op = "Tensor::write_on";
        self.check_host::<T>(op, data.len())?;
        self.check_usable(op, "self", stream.runtime())?;
        crate::transfer::write(self, op, bytemuck::cast_slice(data), Some(stream))
    }

    fn check_host<T: Element>(&self, op: &'static str, len: usize) -> Result<()> {
        self.check_usable(op, "self", &self.rt)?;
        if T::DTYPE != self.dtype {
            return Err(Error::DType { op, operand: "self", actual: self.dtype, expected: T::DTYPE.name() });
        }
        if len != self.len() {
            let actual = format!("{len} elements");
            return Err(Error::shape(op, "data", actual, format!("{:?} has {}", self.shape, self.len())));
        }
        Ok(())
    }

    /// Refuses tensors of other runtimes and of ended steps.
    pub(crate) fn check_usable(&self, op: &'static str, operand: &'static str, rt: &GpuRuntime) -> Result<()> {
        rt.check_process(op)?;
        if !self.rt.is_same(rt) {
            return Err(Error::WrongRuntime { op, operand });
        }
        match self.generation {
            Some(made_in) if made_in != self.memory.generation() => Err(Error::Expired { op, operand }),
            _ => Ok(()),
        }
    }

    pub(crate) fn memory(&self) -> &Arc<Allocation> {
        &self.memory
    }

    pub(crate) fn byte_offset(&self) -> u64 {
        self.offset
    }

    /// Bytes from the first to the last element, both included.
    pub(crate) fn span_bytes(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        let last: u64 = self.shape.iter().zip(&self.strides).map(|(&d, &s)| (d as u64 - 1) * s as u64).sum();
        (last + 1) * self.dtype.size() as u64
    }

    /// Computes what is derived from shape, strides and offset.
    fn placed(mut self) -> Self {
        self.rect = self.find_rect();
        self.repeats = self.find_repeats();
        self
    }

    /// The bytes this view touches: exact for up to one level of rows, a bounding range otherwise.
    pub(crate) fn rect(&self) -> Rect {
        self.rect
    }

    fn find_rect(&self) -> Rect {
        let size = self.dtype.size() as u64;
        if self.is_empty() {
            return Rect::linear(self.offset, 0);
        }
        let mut axes: SmallVec<[(u64, u64); 4]> = self
            .shape
            .iter()
            .zip(&self.strides)
            .filter(|&(&d, &s)| d > 1 && s > 0)
            .map(|(&d, &s)| (s as u64 * size, d as u64))
            .collect();
        axes.sort_unstable();
        let mut rest = axes.as_slice();
        let mut width = size;
        while let [(stride, extent), tail @ ..] = rest
            && *stride == width
        {
            width *= extent;
            rest = tail;
        }
        let Some((&(pitch, first), outer)) = rest.split_first() else {
            return Rect::linear(self.offset, width);
        };
        let mut rows = first;
        for &(stride, extent) in outer {
            if stride != pitch * rows {
                return Rect::linear(self.offset, self.span_bytes());
            }
            rows *= extent;
        }
        if pitch < width {
            return Rect::linear(self.offset, self.span_bytes());
        }
        Rect { offset: self.offset, width, pitch, rows }
    }

    pub(crate) fn binding(&self, access: Access) -> Binding {
        Binding { memory: self.memory.clone(), rect: self.rect, access }
    }

    /// Whether both views touch a common byte, as far as rectangles can tell.
    pub(crate) fn may_overlap(&self, other: &Tensor) -> bool {
        self.memory.same_identity(&other.memory) && {
            let place = |t: &Tensor| Rect { offset: t.rect.offset + t.memory.identity_offset(), ..t.rect };
            place(self).overlaps(&place(other))
        }
    }

    /// Whether both are the same view.
    pub(crate) fn same_view(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory)
            && (self.dtype, &self.shape, &self.strides, self.offset)
                == (other.dtype, &other.shape, &other.strides, other.offset)
    }

    /// Whether two indices name one element, as broadcast and overlapping views do.
    pub(crate) fn repeats_elements(&self) -> bool {
        self.repeats
    }

    fn find_repeats(&self) -> bool {
        if self.is_empty() {
            return false;
        }
        let mut axes: SmallVec<[(usize, usize); 4]> =
            self.shape.iter().zip(&self.strides).filter(|&(&d, _)| d > 1).map(|(&d, &s)| (s, d)).collect();
        axes.sort_unstable();
        let mut reach = 0usize;
        for (stride, extent) in axes {
            if stride <= reach {
                return true;
            }
            reach += stride * (extent - 1);
        }
        false
    }

    /// log2 of the largest power of two, 128 at most, that divides the first byte's address and all `strides` in bytes.
    pub(crate) fn alignment(&self, strides: impl IntoIterator<Item = usize>) -> u8 {
        let size = self.dtype.size() as u64;
        let address = self.memory.raw().device.wrapping_add(self.offset);
        let bits = strides.into_iter().fold(address | 128, |bits, s| bits | (s as u64 * size));
        u8::try_from(bits.trailing_zeros()).expect("INVARIANT: bit 7 is set, so at most 7")
    }
}

/// Sizes inside an allocation fit the address space.
pub(crate) fn to_usize(n: u64) -> usize {
    usize::try_from(n).expect("INVARIANT: bounded by an allocation's size")
}
