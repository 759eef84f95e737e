// SPDX-License-Identifier: GPL-2.0-or-later

//! Expected state: the settings in the container, and the attributes of its link.

use std::path::PathBuf;

use cni_spec::{Attachment, CniError};

use super::config::{Attributes, Config};
use super::{allowed, change_link, check_link, link, set_sysctls, sysctls};
use crate::expected::Expected;
use crate::interface::shared::container::Container;
use crate::plugin::Request;
use crate::undo::Undo;

/// All objects, in the order of the ADD.
pub(super) fn of(request: &Request<'_>) -> Result<Vec<Box<dyn Expected>>, CniError> {
    let place = || -> Result<Place, CniError> {
        let attachment = request.attachment.clone();
        let config = Config::read(request.config, request.args, attachment.ifname())?;
        Ok(Place { config, netns: request.netns.clone(), attachment })
    };
    let settings = Settings(place()?);
    let mut all: Vec<Box<dyn Expected>> = Vec::new();
    if !settings.0.config.sysctls.is_empty() {
        all.push(Box::new(settings));
    }
    let attributes = LinkAttributes(place()?);
    if attributes.0.config.wanted != Attributes::default() {
        all.push(Box::new(attributes));
    }
    Ok(all)
}

/// The container, and the configuration that it has.
struct Place {
    config: Config,
    netns: Option<PathBuf>,
    attachment: Attachment,
}

impl Place {
    fn open(&self) -> Result<Container, CniError> {
        Container::open(self.netns.as_deref())
    }
}

/// `sysctl`.
struct Settings(Place);

impl Expected for Settings {
    fn name(&self) -> String {
        let names: Vec<&str> = self.0.config.sysctls.iter().map(|sysctl| sysctl.path.as_str()).collect();
        format!("settings {} in the container", names.join(", "))
    }

    fn check(&self) -> Result<(), CniError> {
        allowed(&self.0.config)?;
        self.0.open()?.run(|| sysctls::check(&self.0.config.sysctls))?
    }

    fn put_back(&self) -> Result<(), CniError> {
        allowed(&self.0.config)?;
        let container = self.0.open()?;
        let mut undo = Undo::new();
        set_sysctls(&container, &self.0.config.sysctls, &mut undo)?;
        undo.keep();
        Ok(())
    }
}

/// The attributes of the container's link.
struct LinkAttributes(Place);

impl Expected for LinkAttributes {
    fn name(&self) -> String {
        format!("attributes of {} in the container", self.0.attachment.ifname())
    }

    fn check(&self) -> Result<(), CniError> {
        let link = link(&self.0.open()?, self.0.attachment.ifname())?;
        let mut wanted = self.0.config.wanted.clone();
        // Only what the ADD changes is an object of the list.
        wanted.promisc.get_or_insert(link.promiscuous);
        check_link(&link, &wanted)
    }

    fn put_back(&self) -> Result<(), CniError> {
        let container = self.0.open()?;
        let mut undo = Undo::new();
        change_link(&container, &self.0.config, &self.0.attachment, &mut undo)?;
        undo.keep();
        Ok(())
    }
}
