// SPDX-License-Identifier: GPL-3.0-or-later

//! The objects of Kubernetes: the agent's service account with its rights, and the DaemonSet.

use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::{PodTemplateSpec, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use super::{Deployment, NAME, RenderError, pod, yaml};

/// An object of the API server.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Object {
    /// The agent's user.
    ServiceAccount(ServiceAccount),
    /// The rights of the agent's service account.
    ClusterRole(ClusterRole),
    /// The connection of the two.
    ClusterRoleBinding(ClusterRoleBinding),
    /// The agents.
    DaemonSet(Box<DaemonSet>),
}

impl Deployment {
    /// All objects, in the order in which they are created.
    #[must_use]
    pub fn objects(&self) -> Vec<Object> {
        vec![
            Object::ServiceAccount(self.service_account()),
            Object::ClusterRole(self.cluster_role()),
            Object::ClusterRoleBinding(self.cluster_role_binding()),
            Object::DaemonSet(self.daemon_set().into()),
        ]
    }

    /// All objects as a YAML stream.
    ///
    /// # Errors
    /// [`RenderError`] if YAML has no form for a value.
    pub fn manifests(&self) -> Result<String, RenderError> {
        yaml(&self.objects())
    }

    fn service_account(&self) -> ServiceAccount {
        // The agent's pods ask for their token themselves, so that no other pod gets it by default.
        ServiceAccount {
            metadata: self.namespaced(),
            automount_service_account_token: Some(false),
            ..ServiceAccount::default()
        }
    }

    /// The rights: nothing but what the agent calls.
    #[must_use]
    pub(crate) fn cluster_role(&self) -> ClusterRole {
        let mut verbs = vec!["list", "watch", "patch"];
        if !self.startup_taints.is_empty() {
            // The list of taints is replaced as a whole, hence read at once before.
            verbs.push("get");
        }
        let rule = |resource: &str, verbs: &[&str]| PolicyRule {
            api_groups: Some(vec![String::new()]),
            resources: Some(vec![resource.to_owned()]),
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..PolicyRule::default()
        };
        ClusterRole {
            metadata: metadata(),
            rules: Some(vec![
                rule("nodes", &verbs),
                rule("nodes/status", &["patch"]),
                rule("events", &["create"]),
            ]),
            ..ClusterRole::default()
        }
    }

    fn cluster_role_binding(&self) -> ClusterRoleBinding {
        ClusterRoleBinding {
            metadata: metadata(),
            role_ref: RoleRef {
                api_group: "rbac.authorization.k8s.io".to_owned(),
                kind: "ClusterRole".to_owned(),
                name: NAME.to_owned(),
            },
            subjects: Some(vec![Subject {
                kind: "ServiceAccount".to_owned(),
                name: NAME.to_owned(),
                namespace: Some(self.namespace.clone()),
                ..Subject::default()
            }]),
        }
    }

    /// The DaemonSet.
    #[must_use]
    pub fn daemon_set(&self) -> DaemonSet {
        DaemonSet {
            metadata: self.namespaced(),
            spec: Some(DaemonSetSpec {
                selector: LabelSelector { match_labels: Some(labels()), ..LabelSelector::default() },
                // A node without its agent keeps its network, but does not follow changes.
                update_strategy: Some(DaemonSetUpdateStrategy {
                    type_: Some("RollingUpdate".to_owned()),
                    rolling_update: Some(RollingUpdateDaemonSet {
                        max_unavailable: Some(IntOrString::String("10%".to_owned())),
                        ..RollingUpdateDaemonSet::default()
                    }),
                }),
                template: PodTemplateSpec {
                    metadata: Some(ObjectMeta {
                        labels: Some(labels()),
                        annotations: pod::annotations(self),
                        ..ObjectMeta::default()
                    }),
                    spec: Some(pod::spec(self)),
                },
                ..DaemonSetSpec::default()
            }),
            ..DaemonSet::default()
        }
    }

    fn namespaced(&self) -> ObjectMeta {
        ObjectMeta { namespace: Some(self.namespace.clone()), ..metadata() }
    }
}

fn metadata() -> ObjectMeta {
    ObjectMeta { name: Some(NAME.to_owned()), labels: Some(labels()), ..ObjectMeta::default() }
}

fn labels() -> std::collections::BTreeMap<String, String> {
    [("app.kubernetes.io/name".to_owned(), NAME.to_owned())].into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};
    use serde_json::Value;

    use super::*;
    use crate::render::sample;

    /// The page about the rights of the agent.
    const PAGE: &str = include_str!("../../../../docs/cluster/rights.md");

    /// The cells of a table's rows, found by its heading.
    fn table(heading: &str) -> Vec<Vec<String>> {
        let (_, below) = PAGE.split_once(heading).unwrap_or_else(|| panic!("no {heading:?}"));
        let rows = below.lines().skip(2).take_while(|line| line.starts_with('|'));
        rows.map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
            .collect()
    }

    #[test]
    fn the_stream_has_all_objects() {
        let deployment = sample();
        let text = deployment.manifests().unwrap();
        let parsed: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
        let objects: Vec<Value> =
            deployment.objects().iter().map(|object| serde_json::to_value(object).unwrap()).collect();
        assert_eq!(parsed, objects, "{text}");
        let kinds: Vec<&str> = parsed.iter().filter_map(|object| object["kind"].as_str()).collect();
        assert_eq!(kinds, ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Words with quotes, colons, control characters or the look of numbers.
        #[test]
        fn any_text_is_the_same_after_yaml(image in any::<String>(), word in "[-#&*!|>'\"%@`:{}\\[\\], \n\t0-9a-z~.]*") {
            let deployment = Deployment { image, options: vec![word], ..sample() };
            let parsed: Vec<Value> = serde_saphyr::from_multiple(&deployment.manifests().unwrap()).unwrap();
            let objects = deployment.objects();
            let objects: Vec<Value> =
                objects.iter().map(|object| serde_json::to_value(object).unwrap()).collect();
            prop_assert_eq!(parsed, objects);
        }
    }

    #[test]
    fn the_rights_are_those_of_the_page() {
        let rights = |deployment: &Deployment| -> BTreeSet<(String, String)> {
            let rules = deployment.cluster_role().rules.unwrap().into_iter();
            rules
                .flat_map(|rule| {
                    let resource = rule.resources.unwrap().remove(0);
                    rule.verbs.into_iter().map(move |verb| (resource.clone(), verb))
                })
                .collect()
        };
        let documented: BTreeSet<(String, String)> = table("| resource | verb | use |")
            .into_iter()
            .map(|row| (row[0].trim_matches('`').to_owned(), row[1].trim_matches('`').to_owned()))
            .collect();
        let with_taint = rights(&sample());
        assert_eq!(with_taint, documented);
        let without = rights(&Deployment { startup_taints: Vec::new(), ..sample() });
        let only_for_taints: Vec<_> = with_taint.difference(&without).collect();
        assert_eq!(only_for_taints, [&("nodes".to_owned(), "get".to_owned())]);
    }

    #[test]
    fn mounts_and_capabilities_are_those_of_the_page() {
        let documented = |heading| -> BTreeSet<String> {
            table(heading).iter().map(|row| row[0].trim_matches('`').to_owned()).collect()
        };
        let spec = sample().daemon_set().spec.unwrap().template.spec.unwrap();
        let volumes = spec.volumes.unwrap().into_iter();
        let paths: BTreeSet<String> = volumes.map(|volume| volume.host_path.unwrap().path).collect();
        assert_eq!(documented("| mount | access | use |"), paths);
        let added = spec.containers[0].security_context.as_ref().unwrap().capabilities.clone().unwrap().add;
        assert_eq!(documented("| capability | use |"), added.unwrap().into_iter().collect());
    }
}
