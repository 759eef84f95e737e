// SPDX-License-Identifier: GPL-2.0-or-later

//! Prints our tables as text, for bug reports from nodes without nft. Nothing reads this text back.

use std::fmt::Write as _;

use cni_nftables::{ChainInfo, ElementData, ElementInfo, Family, Socket, TableId, Value};

use crate::Error;
use crate::nftables::schema;

fn tables() -> [TableId; 2] {
    [schema::table(), TableId::new(Family::Bridge, "slipway")]
}

/// Prints our tables with their chains and all elements, and the names of all other tables.
pub fn own_tables() -> Result<String, Error> {
    let socket = Socket::open().map_err(|e| Error::kernel("reach nf_tables", e))?;
    let mut text = String::new();
    // Writing to a String cannot fail.
    for id in tables() {
        let found = socket.table(&id).map_err(|e| Error::kernel(format!("read table {id}"), e))?;
        let Some(table) = found else {
            let _written = writeln!(text, "table {id}: does not exist\n");
            continue;
        };
        let _written = writeln!(text, "table {id}: flags {}, {} objects in it", table.flags, table.uses);
        let chains =
            socket.chains(&id).map_err(|e| Error::kernel(format!("list the chains of table {id}"), e))?;
        for chain in chains {
            let _written = writeln!(text, "  {}", of_chain(&chain));
        }
        let flowtable = socket.flowtable(&id, schema::flowtable::FLOWTABLE);
        let flowtable =
            flowtable.map_err(|e| Error::kernel(format!("read the flowtable of table {id}"), e))?;
        if let Some(flowtable) = flowtable {
            let devices: Vec<String> = flowtable.devices.iter().map(ToString::to_string).collect();
            let _written = writeln!(text, "  flowtable {}: {}", flowtable.name, devices.join(", "));
        }
        for set in socket.sets(&id).map_err(|e| Error::kernel(format!("list the maps of table {id}"), e))? {
            let elements = socket.elements(&id, &set.name);
            let elements =
                elements.map_err(|e| Error::kernel(format!("list map {} of table {id}", set.name), e))?;
            let _written = writeln!(text, "  map {}: {} elements", set.name, elements.len());
            // The ports in the set of seen ports are left out, because a port scan can fill that set. Its mark is
            // printed, because that element has a comment.
            let is_port =
                |element: &&ElementInfo| set.name == schema::udp_flows::SET && element.comment.is_none();
            for element in elements.iter().filter(|element| !is_port(element)) {
                let _written = writeln!(text, "    {}", of_element(element));
            }
        }
        text.push('\n');
    }
    text.push_str("other tables:\n");
    for table in socket.tables().map_err(|e| Error::kernel("list tables", e))? {
        if !tables().contains(&table.id) {
            let _written = writeln!(text, "  {}", table.id);
        }
    }
    Ok(text)
}

fn of_chain(chain: &ChainInfo) -> String {
    let base = chain.base.map(|base| format!(", {base:?}")).unwrap_or_default();
    format!("chain {}: rules and elements that lead to it: {}{base}", chain.name, chain.uses)
}

fn of_element(element: &ElementInfo) -> String {
    let join = |values: &[Value]| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . ");
    let mut text = join(&element.key);
    if let Some(end) = &element.key_end {
        let _written = write!(text, " to {}", join(end));
    }
    match &element.data {
        ElementData::Values(values) => {
            let _written = write!(text, " : {}", join(values));
        }
        ElementData::Verdict(verdict) => {
            let _written = write!(text, " : {verdict}");
        }
        ElementData::None => {}
    }
    let comment = element.comment.as_deref().unwrap_or("(no comment)");
    let private: usize = element.tlvs.iter().map(|tlv| tlv.bytes.len()).sum();
    let _written = write!(text, "  {comment:?}, {private} private bytes");
    text
}
