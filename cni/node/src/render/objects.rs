// SPDX-License-Identifier: GPL-3.0-or-later

//! The objects of Kubernetes: the agent's service account with its rights, and the DaemonSet.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
    Validation,
};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::{PodTemplateSpec, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use super::{Deployment, NAME, RenderError, pod, yaml};

/// The name of the node of the pod that a token is bound to, among what the API server knows of a user (KEP-4193).
const NODE_OF_TOKEN: &str = "authentication.kubernetes.io/node-name";

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
    /// The policy that limits these rights to the Node of the agent's own node, which RBAC cannot express.
    Policy(Box<ValidatingAdmissionPolicy>),
    /// The binding that puts the policy into force.
    PolicyBinding(Box<ValidatingAdmissionPolicyBinding>),
    /// The agents.
    DaemonSet(Box<DaemonSet>),
}

impl Deployment {
    /// All objects, in the order in which they are created.
    #[must_use]
    pub fn objects(&self) -> Vec<Object> {
        let mut objects = vec![
            Object::ServiceAccount(self.service_account()),
            Object::ClusterRole(self.cluster_role()),
            Object::ClusterRoleBinding(self.cluster_role_binding()),
        ];
        if self.kubernetes.has_policies() {
            objects.push(Object::Policy(self.policy().into()));
            objects.push(Object::PolicyBinding(policy_binding().into()));
        }
        objects.push(Object::DaemonSet(self.daemon_set().into()));
        objects
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
            // The list of taints is replaced as a whole, so the agent reads it right before.
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

    /// Refuses changes that an agent makes to the Node of another node. The API server knows the agent's node from its
    /// token, which is bound to the agent's pod.
    fn policy(&self) -> ValidatingAdmissionPolicy {
        let list = |words: &[&str]| Some(words.iter().map(|word| (*word).to_owned()).collect());
        ValidatingAdmissionPolicy {
            metadata: metadata(),
            spec: Some(ValidatingAdmissionPolicySpec {
                match_constraints: Some(MatchResources {
                    resource_rules: Some(vec![NamedRuleWithOperations {
                        api_groups: list(&[""]),
                        api_versions: list(&["v1"]),
                        operations: list(&["UPDATE"]),
                        resources: list(&["nodes", "nodes/status"]),
                        ..NamedRuleWithOperations::default()
                    }]),
                    ..MatchResources::default()
                }),
                match_conditions: Some(vec![MatchCondition {
                    name: "agent".to_owned(),
                    expression: format!(
                        "request.userInfo.username == 'system:serviceaccount:{}:{NAME}'",
                        self.namespace
                    ),
                }]),
                validations: Some(vec![Validation {
                    expression: format!(
                        "has(request.userInfo.extra) && '{NODE_OF_TOKEN}' in request.userInfo.extra && \
                         request.userInfo.extra['{NODE_OF_TOKEN}'][0] == object.metadata.name"
                    ),
                    message: Some("an agent may only change the Node of its own node".to_owned()),
                    reason: Some("Forbidden".to_owned()),
                    ..Validation::default()
                }]),
                failure_policy: Some("Fail".to_owned()),
                ..ValidatingAdmissionPolicySpec::default()
            }),
            ..ValidatingAdmissionPolicy::default()
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

fn policy_binding() -> ValidatingAdmissionPolicyBinding {
    ValidatingAdmissionPolicyBinding {
        metadata: metadata(),
        spec: Some(ValidatingAdmissionPolicyBindingSpec {
            policy_name: Some(NAME.to_owned()),
            validation_actions: Some(vec!["Deny".to_owned()]),
            ..ValidatingAdmissionPolicyBindingSpec::default()
        }),
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
        let rights = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"];
        let policies = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
        assert_eq!(kinds, [&rights[..], &policies, &["DaemonSet"]].concat());
    }

    #[test]
    fn the_policy_lets_an_agent_change_its_own_node() {
        let spec = sample().policy().spec.unwrap();
        let validation = spec.validations.unwrap().remove(0);
        let program = cel::Program::compile(&validation.expression).unwrap();
        let allows = |extra: Value| {
            let mut context = cel::Context::default();
            let request = serde_json::json!({ "userInfo": { "extra": extra } });
            context.add_variable("request", request).unwrap();
            let object = serde_json::json!({ "metadata": { "name": "one" } });
            context.add_variable("object", object).unwrap();
            program.execute(&context).unwrap() == true.into()
        };
        assert!(allows(serde_json::json!({ NODE_OF_TOKEN: ["one"] })));
        assert!(!allows(serde_json::json!({ NODE_OF_TOKEN: ["another"] })));
        // The token of a Secret is not bound to a pod.
        assert!(!allows(serde_json::json!({})));
    }

    /// Before 1.30 an API server refuses the kinds, or does not know a token's node.
    #[test]
    fn old_versions_have_no_policy() {
        for (version, count) in [("1.29", 4), ("1.30", 6), ("1.37", 6)] {
            let deployment = Deployment { kubernetes: version.parse().unwrap(), ..sample() };
            assert_eq!(deployment.objects().len(), count, "{version}");
        }
    }

    #[test]
    fn the_policy_is_about_the_agents_user_in_its_namespace() {
        let deployment = Deployment { namespace: "net".to_owned(), ..sample() };
        let conditions = deployment.policy().spec.unwrap().match_conditions.unwrap();
        let user = "request.userInfo.username == 'system:serviceaccount:net:slipwayd'";
        assert_eq!(conditions.iter().map(|one| one.expression.as_str()).collect::<Vec<_>>(), [user]);
        assert_eq!(deployment.service_account().metadata.name.as_deref(), Some("slipwayd"));
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
