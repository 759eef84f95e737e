// SPDX-License-Identifier: GPL-3.0-or-later

//! The open connections of a listener, and the choice of those that are closed when there are too many.
//!
//! A new connection is always accepted: a probe must get its reply however many idle connections others hold. In exchange
//! another one is closed, first of those that have sent no request yet, of the client that has the most, and of these the
//! oldest. A client that sends its request at once is not chosen as long as others wait.
//!
//! ```text
//! accepted ──> waiting for a request ──> replying ──> closed
//!                      └── chosen first ──┴── chosen last ──^
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The most connections of a listener.
pub(super) const ALL: usize = 512;
/// The most connections of a client, except of root at the socket and of this node's own processes at the loopback.
pub(super) const OF_CLIENT: usize = 16;

/// The other end of a connection, as far as connections are counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Client {
    /// A process of this node: at the Unix socket, which is root's, or at a loopback address.
    Local,
    /// An IPv4 address, or the first 64 bits of an IPv6 address, within which a host may choose.
    Remote(IpAddr),
}

impl Client {
    pub(super) fn at(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::Local,
            IpAddr::V6(address) => Self::Remote(IpAddr::V6((u128::from(address) & (u128::MAX << 64)).into())),
            address => Self::Remote(address),
        }
    }

    const fn limit(self) -> usize {
        match self {
            Self::Local => ALL,
            Self::Remote(_) => OF_CLIENT,
        }
    }
}

/// The open connections of a listener.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    clients: BTreeMap<Client, Open>,
    count: usize,
}

/// The connections of a client in the order in which they were accepted. A sender that is dropped closes one.
#[derive(Debug, Default)]
struct Open {
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    replying: BTreeMap<u64, oneshot::Sender<()>>,
}

/// An open connection. When the value is dropped, the connection no longer counts.
#[derive(Debug)]
pub(super) struct Connection {
    all: Arc<Connections>,
    client: Client,
    number: u64,
}

impl Connections {
    /// Counts a new connection, and closes others until there is room for it. The receiver is ready when this one is chosen
    /// later.
    pub(super) fn add(self: &Arc<Self>, client: Client) -> (Connection, oneshot::Receiver<()>) {
        let (close, closed) = oneshot::channel();
        let mut table = self.table();
        while table.clients.get(&client).is_some_and(|open| open.len() >= client.limit()) {
            table.close(client);
        }
        while let Some(busiest) = table.busiest().filter(|_| table.count >= ALL) {
            table.close(busiest);
        }
        let number = table.next;
        table.next += 1;
        table.count += 1;
        table.clients.entry(client).or_default().waiting.insert(number, close);
        (Connection { all: Arc::clone(self), client, number }, closed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// The client with the most connections among those with a waiting one; if none waits, among all.
    fn busiest(&self) -> Option<Client> {
        let busiest = self.clients.iter().max_by_key(|(_, open)| (!open.waiting.is_empty(), open.len()));
        busiest.map(|(client, _)| *client)
    }

    /// Closes a client's oldest waiting connection, or else its oldest one.
    fn close(&mut self, client: Client) {
        let Some(open) = self.clients.get_mut(&client) else { return };
        let oldest = open.waiting.keys().next().or_else(|| open.replying.keys().next()).copied();
        if let Some(number) = oldest {
            self.remove(client, number);
        }
    }

    fn remove(&mut self, client: Client, number: u64) {
        let Some(open) = self.clients.get_mut(&client) else { return };
        if open.waiting.remove(&number).or_else(|| open.replying.remove(&number)).is_some() {
            self.count -= 1;
        }
        if open.len() == 0 {
            self.clients.remove(&client);
        }
    }
}

impl Open {
    fn len(&self) -> usize {
        self.waiting.len() + self.replying.len()
    }
}

impl Connection {
    /// The connection has sent a whole request.
    pub(super) fn replies(&self) {
        if let Some(open) = self.all.table().clients.get_mut(&self.client)
            && let Some(close) = open.waiting.remove(&self.number)
        {
            open.replying.insert(self.number, close);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.table().remove(self.client, self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Open = (Connection, oneshot::Receiver<()>);

    fn client(text: &str) -> Client {
        Client::at(text.parse().unwrap())
    }

    fn is_open((_, closed): &mut Open) -> bool {
        closed.try_recv() == Err(oneshot::error::TryRecvError::Empty)
    }

    #[test]
    fn a_client_is_an_address_or_an_ipv6_subnet() {
        assert_eq!((client("127.9.9.9"), client("::1")), (Client::Local, Client::Local));
        assert_eq!(client("::ffff:10.244.1.7"), client("10.244.1.7"));
        assert_eq!(client("fd44::1"), client("fd44::ffff:2"));
        assert_ne!(client("fd44::1"), client("fd44:0:0:1::1"));
    }

    #[test]
    fn a_client_closes_its_own_oldest_connection_that_has_no_request() {
        let all = Arc::<Connections>::default();
        let mut other = all.add(client("10.244.1.9"));
        let mut held: Vec<Open> = (0..OF_CLIENT).map(|_| all.add(client("10.244.1.7"))).collect();
        held[0].0.replies();
        assert!(held.iter_mut().all(is_open));
        held.push(all.add(client("10.244.1.7")));
        let open: Vec<bool> = held.iter_mut().map(is_open).collect();
        assert_eq!(open.iter().filter(|open| !**open).count(), 1);
        assert!(open[0] && !open[1] && is_open(&mut other));
    }

    #[test]
    fn the_client_with_the_most_connections_makes_room() {
        let all = Arc::<Connections>::default();
        let mut few = all.add(client("10.244.1.9"));
        let mut many: Vec<Open> = (1..ALL).map(|_| all.add(Client::Local)).collect();
        let mut new = all.add(client("10.244.1.10"));
        assert!(is_open(&mut few) && is_open(&mut new) && !is_open(&mut many[0]));
        assert_eq!(all.table().count, ALL);
        // Where all have sent a request, one of these goes.
        many.iter().for_each(|(connection, _)| connection.replies());
        few.0.replies();
        new.0.replies();
        let _another = all.add(Client::Local);
        assert!(is_open(&mut few) && is_open(&mut new) && !is_open(&mut many[1]));
        drop((few, many, new));
        let table = all.table();
        assert_eq!((table.count, table.clients.len()), (1, 1));
    }
}
