// SPDX-License-Identifier: GPL-2.0-or-later

//! The optional parts of the table.

/// The optional parts that a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The protocols of the flowtable. None if there is no flowtable.
    pub(crate) offloading: Option<Protocols>,
    /// True if published ports respond only at those local addresses that are in the table's sets.
    pub(crate) addresses: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocols {
    /// Only TCP, because this kernel cannot delete offloaded flows, and UDP clients would keep sending to a container
    /// that is gone.
    Tcp,
    TcpAndUdp,
}

impl Protocols {
    /// The protocols that a kernel can offload. Since Linux 6.4, ctnetlink deletes offloaded flows
    /// (`ctnetlink_del_conntrack`).
    pub(crate) fn of(kernel: Kernel) -> Self {
        if kernel >= Kernel(6, 4) { Self::TcpAndUdp } else { Self::Tcp }
    }
}

/// The major and minor number of a kernel release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Kernel(pub(crate) u32, pub(crate) u32);

impl Kernel {
    pub(crate) fn this() -> Self {
        let release = nix::sys::utsname::uname().map(|names| names.release().to_string_lossy().into_owned());
        Self::of_release(&release.unwrap_or_default())
    }

    /// Parses a kernel release. Returns 0.0 if it contains no two numbers.
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

    /// True if the kernel looks through bridges, and refuses flows whose container's link is not in the flowtable:
    /// 7.2 does, 6.18 does not. The flowtable then contains a prefix of links' names (`NFTA_DEVICE_PREFIX`), which
    /// the kernel accepts since 6.17. Only newer versions of nft can read such a prefix, so it is used only where it
    /// is needed.
    pub(crate) fn looks_through_bridges(self) -> bool {
        self >= Self(7, 0)
    }
}

impl Layout {
    /// The layout without optional parts.
    pub(crate) const PLAIN: Self = Self { offloading: None, addresses: false };

    /// The same layout with a flowtable for the protocols that this kernel can offload.
    pub(crate) fn offloading(self) -> Self {
        Self { offloading: Some(Protocols::of(Kernel::this())), ..self }
    }
}
