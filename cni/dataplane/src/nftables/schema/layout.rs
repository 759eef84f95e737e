// SPDX-License-Identifier: GPL-2.0-or-later

//! The optional parts of the table.

/// The optional parts that a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The protocols of the flowtable; none without a flowtable.
    pub(crate) offloading: Option<Protocols>,
    /// True if published ports respond only at the addresses in the table's sets, of all that are local.
    pub(crate) addresses: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// Only TCP: the kernel cannot remove offloaded flows, and UDP clients would keep sending to a container
    /// that is gone.
    Tcp,
    TcpAndUdp,
}

impl Protocols {
    /// The protocols for a kernel: since Linux 6.4, ctnetlink deletes offloaded flows
    /// (`ctnetlink_del_conntrack`).
    pub(crate) fn of(kernel: Kernel) -> Self {
        if kernel >= Kernel(6, 4) { Self::TcpAndUdp } else { Self::Tcp }
    }
}

/// Major and minor number of a kernel's release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kernel(pub(crate) u32, pub(crate) u32);

impl Kernel {
    pub(crate) fn this() -> Self {
        let release = nix::sys::utsname::uname().map(|names| names.release().to_string_lossy().into_owned());
        Self::of_release(&release.unwrap_or_default())
    }

    /// Reads a release's text; 0.0 if it has no two numbers.
    pub(crate) fn of_release(release: &str) -> Self {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|word| word.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Self(major, minor),
            _ => Self(0, 0),
        }
    }

    /// True if a flowtable can count (`NFT_FLOWTABLE_COUNTER`, Linux 5.7).
    pub(crate) fn counts(self) -> bool {
        self >= Self(5, 7)
    }

    /// True if the kernel looks through bridges and refuses flows whose container's link is not in the
    /// flowtable: 7.2 does, 6.18 does not. Since 6.17 the kernel takes a prefix of links' names
    /// (`NFTA_DEVICE_PREFIX`). Only newer versions of nft can read that, so it is used only where it is
    /// needed.
    pub(crate) fn looks_through_bridges(self) -> bool {
        self >= Self(7, 0)
    }
}

impl Layout {
    /// No optional part.
    pub(crate) const PLAIN: Self = Self { offloading: None, addresses: false };

    /// The same layout with a flowtable, as this kernel can have it.
    pub(crate) fn offloading(self) -> Self {
        Self { offloading: Some(Protocols::of(Kernel::this())), ..self }
    }
}
