// SPDX-License-Identifier: GPL-3.0-or-later

//! The set-up of a pod that is already connected.

use cni_runtime::kubelet::Pod;

use super::{INTERFACE, Kubenet, KubenetError, PodNetwork};

impl Kubenet {
    /// Refuses such a set-up before anything is changed. Otherwise returns whether the pod has the interface, which is
    /// then that of an earlier set-up, because the cache may be lost.
    pub(super) async fn refuse_connected(
        &self,
        pod: &Pod,
        network: &PodNetwork,
    ) -> Result<bool, KubenetError> {
        let netns = self.settings()?.host.netns(&pod.sandbox_id).map_err(KubenetError::Netns)?;
        let (list, container) = (network.network(false, false)?, pod.container(INTERFACE, &netns));
        self.runtime().refuse_attached(&list, &container).await.map_err(KubenetError::Add)
    }
}
