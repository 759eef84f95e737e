//! dhcp and its daemon: with a real server (dnsmasq), and with one that does as a test says.

mod daemon;
mod lease;
mod links;
mod plugins;
mod server;
mod stage;
mod times;
