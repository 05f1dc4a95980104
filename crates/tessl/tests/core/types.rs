//! Which types may cross threads, checked by the compiler.

use tessl::{Device, Error, Event, GpuRuntime, Graph, GraphSet, Kernel, PingPong, Stream, Tensor, Ticket};

fn shared<T: Send + Sync + 'static>() {}
fn sent<T: Send + 'static>() {}

/// Compiles only when `Stream` is not `Sync`: with both, the choice of the type parameter would be ambiguous.
trait NotSync<A> {
    fn check() {}
}
impl<T: ?Sized> NotSync<()> for T {}
#[allow(dead_code)]
struct Marker;
impl<T: ?Sized + Sync> NotSync<Marker> for T {}

#[test]
fn send_and_sync() {
    shared::<Device>();
    shared::<GpuRuntime>();
    shared::<Tensor>();
    shared::<Event>();
    shared::<Ticket>();
    shared::<Graph>();
    shared::<PingPong>();
    shared::<GraphSet<usize>>();
    shared::<Kernel>();
    shared::<Error>();
    sent::<Stream>();
    <Stream as NotSync<_>>::check();
}
