// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state: the queues, the device, and the redirection to it.

use std::fmt;

use cni_dataplane::ebpf;
use cni_kernel::AddressFamily;
use cni_kernel::route::{IngressFilter, Link, RouteSocket, TokenBucket, Verdict};
use cni_spec::{Attachment, CniError};

use super::config::Limits;
use super::{Sides, device};
use crate::expected::{Expected, Whose};
use crate::interface::shared::failed;
use crate::undo::Undo;

/// All objects of the limits, in the order in which CHECK reports them.
pub(super) fn of(sides: &Sides, limits: &Limits, attachment: &Attachment) -> Vec<Box<dyn Expected>> {
    let mut all: Vec<Box<dyn Expected>> = Vec::new();
    if let Some(bucket) = limits.ingress {
        all.push(Box::new(IngressQueue { veth: sides.veth.clone(), bucket }));
    }
    if let Some(bucket) = limits.egress {
        let egress = Egress { veth: sides.veth.clone(), attachment: attachment.clone(), bucket };
        all.push(Box::new(Device(egress.clone())));
        all.push(Box::new(EgressQueue(egress.clone())));
        all.push(Box::new(Redirection(egress.clone())));
        all.push(Box::new(EarlierPrograms(egress)));
    }
    all
}

fn wrong(msg: String) -> CniError {
    CniError::internal(msg)
}

fn open() -> Result<RouteSocket, CniError> {
    RouteSocket::open().map_err(failed)
}

/// The queue that limits what goes into the container.
struct IngressQueue {
    /// The node's end of the container's pair of links.
    veth: Link,
    bucket: TokenBucket,
}

impl Expected for IngressQueue {
    fn name(&self) -> String {
        format!("rate limit of {} (into the container)", self.veth.name)
    }

    fn alters(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        check_queue(&open()?, &self.veth, &self.bucket)
    }

    fn put_back(&self) -> Result<(), CniError> {
        let sides = Sides { host: open()?, veth: self.veth.clone() };
        let mut undo = Undo::new();
        sides.limit_ingress(&self.bucket, &mut undo).map_err(failed)?;
        undo.keep();
        // The BPF programs bypass the queues, and may have been attached while there was none.
        ebpf::limit_link(self.veth.index);
        Ok(())
    }
}

/// The limit of what comes out of the container.
#[derive(Clone)]
struct Egress {
    veth: Link,
    attachment: Attachment,
    bucket: TokenBucket,
}

impl Egress {
    /// The device's usual name.
    fn device_name(&self) -> String {
        let [name, _] = device::names(&self.attachment);
        name
    }

    fn device(&self, host: &RouteSocket) -> Result<Link, CniError> {
        let found = device::find(host, &self.attachment).map_err(failed)?.into_iter().next();
        found.ok_or_else(|| wrong(format!("get ifb device: {} not found", self.device_name())))
    }

    /// The filters before the redirection; none if the redirection is missing.
    fn before(&self, host: &RouteSocket, device: &Link) -> Result<Option<Vec<IngressFilter>>, CniError> {
        host.before_redirection(&self.veth, device.index).map_err(failed)
    }

    /// Makes device, queue and redirection.
    fn put_back(&self) -> Result<(), CniError> {
        let sides = Sides { host: open()?, veth: self.veth.clone() };
        let mut undo = Undo::new();
        sides.limit_egress(&self.bucket, &self.attachment, &mut undo).map_err(failed)?;
        undo.keep();
        // The BPF programs bypass the queues, and may have been attached while there was none.
        ebpf::limit_link(self.veth.index);
        Ok(())
    }
}

/// The intermediate device: without it the kernel drops what the filter redirects.
struct Device(Egress);

impl Expected for Device {
    fn name(&self) -> String {
        format!("device {}", self.0.device_name())
    }

    fn stops(&self, _family: AddressFamily, _is_forwarded: bool) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        let device = self.0.device(&open()?)?;
        if device.up { Ok(()) } else { Err(wrong(format!("device {} is down", device.name))) }
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.0.put_back()
    }

    fn take_away(&self) -> Result<(), CniError> {
        let host = open()?;
        let veth = &self.0.veth;
        // The link's name depends only on the attachment, so a link of that name with another index belongs to a later
        // ADD, and so does the device.
        match host.find_link(&veth.name).map_err(failed)? {
            Some(link) if link.index != veth.index => Ok(()),
            _ => device::remove(&host, &self.0.attachment).map_err(failed),
        }
    }
}

/// The queue of the device.
struct EgressQueue(Egress);

impl Expected for EgressQueue {
    fn name(&self) -> String {
        format!("rate limit of {} (out of the container)", self.0.device_name())
    }

    fn alters(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        let host = open()?;
        check_queue(&host, &self.0.device(&host)?, &self.0.bucket)
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.0.put_back()
    }
}

/// The filter that redirects to the device, with no filter before it that may accept packets itself.
struct Redirection(Egress);

impl Expected for Redirection {
    fn name(&self) -> String {
        format!("redirection of {} to {}", self.0.veth.name, self.0.device_name())
    }

    fn alters(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        let host = open()?;
        let (veth, device) = (&self.0.veth, self.0.device(&host)?);
        let Some(before) = self.0.before(&host, &device)? else {
            let (from, to) = (&veth.name, &device.name);
            return Err(wrong(format!("packets received by {from} are not redirected to {to}")));
        };
        match before.iter().find(|filter| filter.verdict == Verdict::Final) {
            Some(filter) => Err(wrong(early(filter, veth, &device))),
            None => Ok(()),
        }
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.0.put_back()?;
        // A filter that was there before ours and has the very first preference stays before ours.
        self.check()
    }
}

/// The report about a filter that decides before the redirection.
pub(super) fn early(filter: &IngressFilter, veth: &Link, device: &Link) -> String {
    format!(
        "{filter}, of {} decides before packets are redirected to {}: what it accepts has no limit; delete it \
         (`{}`), then `slipway restore`",
        veth.name,
        device.name,
        filter.command_to_delete(veth)
    )
}

/// A BPF program that runs earlier.
enum Earlier {
    /// The program is attached at tcx, which comes before all filters.
    Tcx,
    Filter(IngressFilter),
}

impl fmt::Display for Earlier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcx => f.write_str("a program at tcx"),
            Self::Filter(filter) => filter.fmt(f),
        }
    }
}

/// BPF programs that run before the redirection. Only their owner knows whether they accept packets themselves.
struct EarlierPrograms(Egress);

impl EarlierPrograms {
    fn first(&self) -> Result<Option<Earlier>, CniError> {
        let host = open()?;
        if ebpf::programs_before_filters(&self.0.veth.name) > 0 {
            return Ok(Some(Earlier::Tcx));
        }
        // Without a device there is no redirection either, which is reported.
        let devices = device::find(&host, &self.0.attachment).map_err(failed)?;
        let Some(device) = devices.first() else { return Ok(None) };
        let before = self.0.before(&host, device)?.unwrap_or_default();
        Ok(before.into_iter().find(|filter| filter.verdict == Verdict::Unknown).map(Earlier::Filter))
    }
}

impl Expected for EarlierPrograms {
    fn name(&self) -> String {
        format!("no BPF program before the redirection of {}", self.0.veth.name)
    }

    fn whose(&self) -> Whose {
        Whose::Theirs
    }

    fn remedy(&self) -> String {
        let delete = match self.first() {
            Ok(Some(Earlier::Filter(filter))) => {
                format!("; without it: `{}`, then `slipway restore`", filter.command_to_delete(&self.0.veth))
            }
            _ => String::new(),
        };
        format!(
            "the program must give the verdict TC_ACT_UNSPEC (TCX_NEXT) where it would accept a packet{delete}"
        )
    }

    fn alters(&self) -> bool {
        true
    }

    fn check(&self) -> Result<(), CniError> {
        match self.first()? {
            Some(earlier) => Err(wrong(format!(
                "{earlier}, of {} is asked before the limit of the container: what it accepts has none",
                self.0.veth.name
            ))),
            None => Ok(()),
        }
    }

    fn put_back(&self) -> Result<(), CniError> {
        self.check()
    }
}

fn check_queue(host: &RouteSocket, link: &Link, wanted: &TokenBucket) -> Result<(), CniError> {
    let wrong = |msg: &str| Err(wrong(format!("{msg} (link {})", link.name)));
    match host.token_bucket(link).map_err(failed)? {
        None => wrong("Failed to find qdisc"),
        Some(is) if is.rate != wanted.rate => wrong("Rate doesn't match"),
        Some(is) if is.limit != wanted.limit => wrong("Limit doesn't match"),
        Some(is) if is.burst_ticks != wanted.burst_ticks => wrong("Buffer doesn't match"),
        Some(_) => Ok(()),
    }
}
