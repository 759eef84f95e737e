// SPDX-License-Identifier: MIT OR GPL-2.0-only

//! Implements aya's `Pod`, so that user space can read and write keys and values as bytes.

use crate::{Addr4, Addr6, Container, Entry, FlowKey, Port, Way};

// SAFETY (all of this file): the types are `repr(C)` or `repr(transparent)` and consist of integers, so any
// bits are a valid value. All padding is a field: for the generic types, a test in `flow.rs` compares the
// sizes, and the fields of the others leave no gap.
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
