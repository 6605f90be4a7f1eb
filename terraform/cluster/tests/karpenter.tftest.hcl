# What Karpenter finds, what it may do, and what the charts are told about it.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  owner = "platform-team"
}

run "apply" {
  assert {
    condition     = aws_eks_access_entry.karpenter_nodes.type == "EC2_LINUX" && aws_eks_access_entry.karpenter_nodes.principal_arn == aws_iam_role.karpenter_node.arn
    error_message = "The role of Karpenter's nodes must have its access entry, or no node joins."
  }

  assert {
    condition = toset([for attached in aws_iam_role_policy_attachment.karpenter_node : attached.policy_arn]) == toset([
      "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy", "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy",
      "arn:aws:iam::aws:policy/AmazonEC2ContainerRegistryPullOnly", "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore",
    ])
    error_message = "A node may join, network, pull and be reached through SSM, and nothing else."
  }

  assert {
    condition = (
      aws_eks_pod_identity_association.karpenter.namespace == "kube-system"
      && aws_eks_pod_identity_association.karpenter.service_account == "karpenter"
      && aws_eks_pod_identity_association.karpenter.role_arn == aws_iam_role.karpenter.arn
      && output.karpenter_values.serviceAccount.name == "karpenter"
    )
    error_message = "The role must go to the service account that Karpenter's chart makes."
  }

  assert {
    condition = tomap({ for condition in data.aws_iam_policy_document.karpenter_trust.statement[0].condition : condition.variable => one(condition.values) }) == tomap({
      "aws:RequestTag/eks-cluster-name"           = "cuda-graph-inference"
      "aws:RequestTag/kubernetes-namespace"       = "kube-system"
      "aws:RequestTag/kubernetes-service-account" = "karpenter"
    })
    error_message = "No other pod and no other cluster may take Karpenter's role."
  }

  assert {
    condition     = length(aws_iam_role_policy_attachment.karpenter) == 4
    error_message = "All four parts of the policy must be attached."
  }

  # The policy.

  assert {
    condition     = length(flatten([for document in data.aws_iam_policy_document.karpenter : [for statement in document.statement : [for action in statement.actions : action if strcontains(action, "*")]]])) == 0
    error_message = "Every action must be named: no wildcard."
  }

  assert {
    condition = alltrue(flatten([for document in data.aws_iam_policy_document.karpenter : [
      for statement in document.statement : !contains(statement.resources, "*") || alltrue([for action in statement.actions : can(regex(":(Describe|Get|List)", action))])
    ]]))
    error_message = "Only what reads may look at everything."
  }

  assert {
    condition = alltrue([
      for statement in data.aws_iam_policy_document.karpenter["node-lifecycle"].statement :
      contains([for condition in statement.condition : condition.variable], "aws:RequestTag/kubernetes.io/cluster/cuda-graph-inference")
      || contains([for condition in statement.condition : condition.variable], "aws:ResourceTag/kubernetes.io/cluster/cuda-graph-inference")
      if statement.sid != "LaunchFromWhatIsThere"
    ])
    error_message = "Karpenter may start, tag and end only what carries this cluster's tag."
  }

  assert {
    condition = alltrue([
      for statement in data.aws_iam_policy_document.karpenter["node-lifecycle"].statement :
      !contains(statement.actions, "ec2:TerminateInstances") || statement.sid == "EndOwnInstances"
    ])
    error_message = "Only one statement ends instances: this cluster's."
  }

  assert {
    condition = alltrue([
      for statement in data.aws_iam_policy_document.karpenter["iam-integration"].statement :
      !contains(statement.actions, "iam:PassRole") || statement.resources == toset([aws_iam_role.karpenter_node.arn])
    ])
    error_message = "Karpenter may pass on no role but its nodes'."
  }

  assert {
    condition     = one(data.aws_iam_policy_document.karpenter["interruption"].statement).resources == toset([aws_sqs_queue.interruption.arn])
    error_message = "Karpenter may read no queue but its own."
  }

  # Discovery: nodes go into private subnets, and into the group of the control plane.

  assert {
    condition     = alltrue([for subnet in aws_subnet.private : subnet.tags["karpenter.sh/discovery"] == "cuda-graph-inference"])
    error_message = "Karpenter must find the private subnets."
  }

  assert {
    condition     = alltrue([for subnet in aws_subnet.public : !contains(keys(subnet.tags), "karpenter.sh/discovery")])
    error_message = "Karpenter must not find the public subnets."
  }

  assert {
    condition = (
      aws_ec2_tag.cluster_security_group["karpenter.sh/discovery"].value == "cuda-graph-inference"
      && aws_ec2_tag.cluster_security_group["karpenter.sh/discovery"].resource_id == one(aws_eks_cluster.this.vpc_config).cluster_security_group_id
      && aws_ec2_tag.cluster_security_group["owner"].value == "platform-team"
    )
    error_message = "Karpenter must find the cluster's security group, which EKS makes without our tags."
  }
}
