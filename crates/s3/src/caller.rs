//! The sender of a form, and what the sender may do.

use crate::conditions::ConditionContext;
use crate::evaluation::evaluate;
use nacre_rgw::caps::{self, Perm};
use nacre_rgw::policy::{Decision, Policy, PolicyPrincipal, PolicyRequest};
use nacre_rgw::session::CallerIdentity;

/// The sender of a form.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) assumed: CallerIdentity,
    /// Whether the form is signed with temporary credentials.
    pub(crate) temporary: bool,
    /// The values that conditions of policies may ask for.
    pub(crate) context: ConditionContext,
}

impl Caller {
    pub(crate) fn principal(&self) -> PolicyPrincipal<'_> {
        let role = self.assumed.role.as_ref().map(|(role, session)| (role.name.as_str(), session.as_str()));
        PolicyPrincipal { user: Some(&self.assumed.user.id), role }
    }

    /// Returns the decision of the caller's own policies.
    pub(crate) fn own_decision(&self, action: &str, resource: &str) -> Decision {
        self.decision(None, action, resource)
    }

    /// Returns the decision of the caller's own policies and that of the resource. The policy of a session limits both.
    pub(crate) fn decision(&self, of_resource: Option<&Policy>, action: &str, resource: &str) -> Decision {
        let own = match &self.assumed.role {
            Some((role, _)) => &role.permissions,
            None => &self.assumed.user.identity,
        };
        let policies = own.iter().map(|policy| &**policy).chain(of_resource);
        let decision = self.evaluate_policies(policies, action, resource);
        match &self.assumed.policy {
            None => decision,
            Some(session) => decision.and(self.evaluate_policies([&**session].into_iter(), action, resource)),
        }
    }

    pub(crate) fn evaluate_policies<'p>(
        &self,
        policies: impl Iterator<Item = &'p Policy>,
        action: &str,
        resource: &str,
    ) -> Decision {
        let context = |key: &str| self.context.get(key);
        let asked = PolicyRequest { who: self.principal(), action, resource, context: &context };
        policies.fold(Decision::Pass, |decision, policy| decision.or(evaluate(policy, &asked)))
    }

    /// Whether the caller is an administrator. No policy restricts administrators. Roles, and sessions with a policy, are not
    /// administrators.
    pub(crate) fn is_administrator(&self) -> bool {
        let user = &self.assumed.user;
        self.is_plain_user() && (user.admin || user.system)
    }

    /// Whether the caller has a capability. Roles, and sessions with a policy, do not have the user's capabilities.
    pub(crate) fn has_capability(&self, kind: &str, perm: Perm) -> bool {
        self.is_administrator() || (self.is_plain_user() && caps::allow(&self.assumed.user.caps, kind, perm))
    }

    /// Whether the caller is that user, in no role and in no session with a policy.
    pub(crate) fn is_user(&self, id: &str) -> bool {
        self.is_plain_user() && self.assumed.user.id == id
    }

    /// Whether the caller is a user in no role and in no session with a policy.
    pub(crate) fn is_plain_user(&self) -> bool {
        self.assumed.role.is_none() && self.assumed.policy.is_none()
    }
}
