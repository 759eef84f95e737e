// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Lets aya read and write the types as bytes.

use crate::{Addr4, Addr6, Container, Entry, FlowKey, Port, Way};

// SAFETY (all of this file): the types are `repr(C)` or `repr(transparent)`, consist of integers and have no
// padding that is not a field (the tests of each module compare sizes); any bits are a valid value.
macro_rules! plain {
    ($($type:ty),*) => { $(
        // SAFETY: see above.
        unsafe impl aya::Pod for $type {}
    )* };
    (both families: $($type:ident),*) => { $(
        // SAFETY: see above.
        unsafe impl aya::Pod for $type<Addr4> {}
        // SAFETY: see above.
        unsafe impl aya::Pod for $type<Addr6> {}
    )* };
}

plain!(Addr4, Addr6, Container, Port);
plain!(both families: Entry, FlowKey, Way);
