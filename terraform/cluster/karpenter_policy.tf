# What Karpenter's controller may do, as its documentation splits it: life of nodes, their instance profiles, discovery, and
# the queue. It makes only what carries this cluster's tag, and touches only what carries it.

locals {
  ec2     = "arn:${local.partition}:ec2:${var.region}"
  profile = "arn:${local.partition}:iam::${local.account_id}:instance-profile/*"

  # What a launch makes.
  launched = [for kind in ["fleet", "instance", "launch-template", "network-interface", "spot-instances-request", "volume"] : "${local.ec2}:*:${kind}/*"]

  owned_tag = "kubernetes.io/cluster/${var.cluster_name}"

  # Conditions: [test, key, values].
  asks_for_ours = [
    ["StringEquals", "aws:RequestTag/${local.owned_tag}", ["owned"]],
    ["StringEquals", "aws:RequestTag/eks:eks-cluster-name", [var.cluster_name]],
    ["StringLike", "aws:RequestTag/karpenter.sh/nodepool", ["*"]],
  ]
  is_ours = [
    ["StringEquals", "aws:ResourceTag/${local.owned_tag}", ["owned"]],
    ["StringLike", "aws:ResourceTag/karpenter.sh/nodepool", ["*"]],
  ]
  asks_for_our_profile = [
    ["StringEquals", "aws:RequestTag/${local.owned_tag}", ["owned"]],
    ["StringEquals", "aws:RequestTag/eks:eks-cluster-name", [var.cluster_name]],
    ["StringEquals", "aws:RequestTag/topology.kubernetes.io/region", [var.region]],
    ["StringLike", "aws:RequestTag/karpenter.k8s.aws/ec2nodeclass", ["*"]],
  ]
  is_our_profile = [
    ["StringEquals", "aws:ResourceTag/${local.owned_tag}", ["owned"]],
    ["StringEquals", "aws:ResourceTag/topology.kubernetes.io/region", [var.region]],
    ["StringLike", "aws:ResourceTag/karpenter.k8s.aws/ec2nodeclass", ["*"]],
  ]

  karpenter_statements = {
    node-lifecycle = [
      {
        sid       = "LaunchFromWhatIsThere"
        actions   = ["ec2:CreateFleet", "ec2:RunInstances"]
        resources = concat(["${local.ec2}::image/*", "${local.ec2}::snapshot/*"], [for kind in ["capacity-reservation", "placement-group", "security-group", "subnet"] : "${local.ec2}:*:${kind}/*"])
        when      = []
      },
      {
        sid       = "LaunchFromOwnTemplates"
        actions   = ["ec2:CreateFleet", "ec2:RunInstances"]
        resources = ["${local.ec2}:*:launch-template/*"]
        when      = local.is_ours
      },
      {
        sid       = "LaunchWithOwnTags"
        actions   = ["ec2:CreateFleet", "ec2:CreateLaunchTemplate", "ec2:RunInstances"]
        resources = local.launched
        when      = local.asks_for_ours
      },
      {
        sid       = "TagWhileLaunching"
        actions   = ["ec2:CreateTags"]
        resources = local.launched
        when      = concat(local.asks_for_ours, [["StringEquals", "ec2:CreateAction", ["CreateFleet", "CreateLaunchTemplate", "RunInstances"]]])
      },
      {
        sid       = "NameOwnInstances"
        actions   = ["ec2:CreateTags"]
        resources = ["${local.ec2}:*:instance/*"]
        when = concat(local.is_ours, [
          ["StringEqualsIfExists", "aws:RequestTag/eks:eks-cluster-name", [var.cluster_name]],
          ["ForAllValues:StringEquals", "aws:TagKeys", ["Name", "eks:eks-cluster-name", "karpenter.sh/nodeclaim"]],
        ])
      },
      {
        sid       = "EndOwnInstances"
        actions   = ["ec2:DeleteLaunchTemplate", "ec2:TerminateInstances"]
        resources = ["${local.ec2}:*:instance/*", "${local.ec2}:*:launch-template/*"]
        when      = local.is_ours
      },
    ]
    iam-integration = [
      {
        sid       = "GiveNodesTheirRole"
        actions   = ["iam:PassRole"]
        resources = [aws_iam_role.karpenter_node.arn]
        when      = [["StringEquals", "iam:PassedToService", ["ec2.amazonaws.com"]]]
      },
      {
        sid       = "MakeOwnProfiles"
        actions   = ["iam:CreateInstanceProfile"]
        resources = [local.profile]
        when      = local.asks_for_our_profile
      },
      {
        sid       = "TagOwnProfiles"
        actions   = ["iam:TagInstanceProfile"]
        resources = [local.profile]
        when      = concat(local.is_our_profile, local.asks_for_our_profile)
      },
      {
        sid       = "ChangeOwnProfiles"
        actions   = ["iam:AddRoleToInstanceProfile", "iam:DeleteInstanceProfile", "iam:RemoveRoleFromInstanceProfile"]
        resources = [local.profile]
        when      = local.is_our_profile
      },
      {
        # An account that never asked for spot capacity lacks the role behind it, and the first request makes it.
        sid       = "FirstSpotRequestOfAccount"
        actions   = ["iam:CreateServiceLinkedRole"]
        resources = ["arn:${local.partition}:iam::${local.account_id}:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"]
        when      = [["StringEquals", "iam:AWSServiceName", ["spot.amazonaws.com"]]]
      },
    ]
    discovery = [
      {
        sid = "ReadRegion"
        actions = [
          "ec2:DescribeCapacityReservations", "ec2:DescribeImages", "ec2:DescribeInstanceStatus",
          "ec2:DescribeInstanceTypeOfferings", "ec2:DescribeInstanceTypes", "ec2:DescribeInstances",
          "ec2:DescribeLaunchTemplates", "ec2:DescribePlacementGroups", "ec2:DescribeSecurityGroups",
          "ec2:DescribeSpotPriceHistory", "ec2:DescribeSubnets",
        ]
        resources = ["*"]
        when      = [["StringEquals", "aws:RequestedRegion", [var.region]]]
      },
      {
        sid       = "ReadImageNames"
        actions   = ["ssm:GetParameter"]
        resources = ["arn:${local.partition}:ssm:${var.region}::parameter/aws/service/*"]
        when      = []
      },
      {
        sid       = "ReadPricesAndProfiles"
        actions   = ["iam:ListInstanceProfiles", "pricing:GetProducts"]
        resources = ["*"]
        when      = []
      },
      {
        sid       = "ReadProfile"
        actions   = ["iam:GetInstanceProfile"]
        resources = [local.profile]
        when      = []
      },
      {
        sid       = "ReadCluster"
        actions   = ["eks:DescribeCluster"]
        resources = [aws_eks_cluster.this.arn]
        when      = []
      },
    ]
    interruption = [
      {
        sid       = "ReadQueue"
        actions   = ["sqs:DeleteMessage", "sqs:GetQueueUrl", "sqs:ReceiveMessage"]
        resources = [aws_sqs_queue.interruption.arn]
        when      = []
      },
    ]
  }
}

data "aws_iam_policy_document" "karpenter" {
  # checkov:skip=CKV_AWS_356: Describe and List calls know no narrower resource; those on EC2 are held to the region.
  for_each = local.karpenter_statements

  dynamic "statement" {
    for_each = each.value

    content {
      sid       = statement.value.sid
      actions   = statement.value.actions
      resources = statement.value.resources

      dynamic "condition" {
        for_each = statement.value.when

        content {
          test     = condition.value[0]
          variable = condition.value[1]
          values   = condition.value[2]
        }
      }
    }
  }
}

resource "aws_iam_policy" "karpenter" {
  for_each = local.karpenter_statements

  name        = "${var.cluster_name}-karpenter-${each.key}"
  description = "Karpenter in ${var.cluster_name}: ${each.key}"
  policy      = data.aws_iam_policy_document.karpenter[each.key].json
}

resource "aws_iam_role_policy_attachment" "karpenter" {
  for_each = local.karpenter_statements

  role       = aws_iam_role.karpenter.name
  policy_arn = aws_iam_policy.karpenter[each.key].arn
}
