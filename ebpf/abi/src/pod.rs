//! Says to aya which types may be read and written as bytes.

use crate::{
    Addr4, Addr6, Config, Flow, FlowKey, FragmentKey, FragmentPorts, Pod, PodAddress, Port, PortKey,
    PortTarget, Router, SocketKey, SocketOrigin, Uplink,
};

// SAFETY (all of this file): the types are `repr(C)` or `repr(transparent)`, made of integers only, without
// padding that is not a field (the tests of each module compare sizes), and any bits are a valid value.
macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: see above.
        unsafe impl aya::Pod for $type {}
    )* };
    (of address: $($type:ident),*) => { $(
        // SAFETY: see above; with both kinds of address.
        unsafe impl aya::Pod for $type<Addr4> {}
        // SAFETY: see above.
        unsafe impl aya::Pod for $type<Addr6> {}
    )* };
}

plain!(Addr4, Addr6, Port, Config, FragmentPorts, Pod, PodAddress, Router, Uplink);
plain!(of address: Flow, FlowKey, FragmentKey, PortKey, PortTarget, SocketKey, SocketOrigin);
