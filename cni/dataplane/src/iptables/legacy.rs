//! The legacy variant's nat table, as far as it can be looked at without the tools.

use cni_kernel::route::Family;
use cni_kernel::xtables;

use crate::{AddressFamily, Error};

fn kernel_family(family: AddressFamily) -> Family {
    match family {
        AddressFamily::V4 => Family::V4,
        AddressFamily::V6 => Family::V6,
    }
}

/// Whether the nat table is there.
pub(crate) fn has_nat(family: AddressFamily) -> bool {
    has_table(family, "nat")
}

/// Whether a table is there.
pub(crate) fn has_table(family: AddressFamily, table: &str) -> bool {
    xtables::has_table(kernel_family(family), table)
}

/// The chains of the nat table.
pub(crate) fn chains(family: AddressFamily) -> Result<Vec<String>, Error> {
    chains_of(family, "nat")
}

/// The chains of a table; none if it is not there.
pub(crate) fn chains_of(family: AddressFamily, table: &str) -> Result<Vec<String>, Error> {
    xtables::chains(kernel_family(family), table).map_err(|e| Error::kernel("look at the legacy tables", e))
}
