// SPDX-License-Identifier: GPL-3.0-or-later

//! A set-up of a pod that is connected.

use cni_runtime::kubelet::Pod;

use super::{INTERFACE, Kubenet, KubenetError, PodNetwork};

impl Kubenet {
    /// Refuses it before anything is changed. Returns whether the pod has the interface otherwise: it is then that of an
    /// earlier set-up, as the cache may be lost.
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
