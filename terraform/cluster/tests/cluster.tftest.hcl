# The control plane, who may use it, its network and its nodes, as they come and as they are asked for.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  owner = "platform-team"
}

# All that an empty account has: a plan must come without -target.
run "first_plan" {
  command = plan

  assert {
    condition     = aws_eks_cluster.this.name == "cuda-graph-inference"
    error_message = "The cluster is called cuda-graph-inference where nobody says otherwise."
  }

  assert {
    condition     = length(aws_nat_gateway.this) == 1 && length(aws_vpc_endpoint.interface) == 0
    error_message = "The cheapest working network is one NAT gateway and no interface endpoint."
  }
}

run "defaults" {
  assert {
    condition = (
      one(aws_eks_cluster.this.access_config).authentication_mode == "API"
      && one(aws_eks_cluster.this.access_config).bootstrap_cluster_creator_admin_permissions
    )
    error_message = "Access must be by entries alone, with the creator as an administrator."
  }

  assert {
    condition     = one(aws_eks_cluster.this.upgrade_policy).support_type == "STANDARD"
    error_message = "The dearer extended support must be asked for."
  }

  assert {
    condition     = !aws_eks_cluster.this.bootstrap_self_managed_addons
    error_message = "EKS must not install add-ons that nobody can upgrade."
  }

  assert {
    condition = (
      one(aws_eks_cluster.this.encryption_config).resources == toset(["secrets"])
      && one(one(aws_eks_cluster.this.encryption_config).provider).key_arn == aws_kms_key.cluster.arn
      && aws_kms_key.cluster.enable_key_rotation
    )
    error_message = "Secrets must be encrypted with our own key, which rotates."
  }

  assert {
    condition = (
      one(aws_eks_cluster.this.vpc_config).endpoint_private_access
      && one(aws_eks_cluster.this.vpc_config).endpoint_public_access
      && toset(one(aws_eks_cluster.this.vpc_config).subnet_ids) == toset(aws_subnet.private[*].id)
    )
    error_message = "The API must be reachable from within, and from without by default; its network is the private one."
  }

  assert {
    condition = (
      aws_eks_cluster.this.enabled_cluster_log_types == toset(["audit", "authenticator"])
      && aws_cloudwatch_log_group.control_plane.name == "/aws/eks/cuda-graph-inference/cluster"
      && aws_cloudwatch_log_group.control_plane.retention_in_days == 30
      && aws_cloudwatch_log_group.control_plane.kms_key_id == aws_kms_key.cluster.arn
    )
    error_message = "Who did what must be logged, to the group that EKS writes to, for 30 days, encrypted."
  }

  # The nodes of the system pods.

  assert {
    condition = (
      aws_eks_node_group.system.capacity_type == "ON_DEMAND"
      && aws_eks_node_group.system.ami_type == "AL2023_x86_64_STANDARD"
      && one(aws_eks_node_group.system.scaling_config).min_size >= 2
      && length(aws_eks_node_group.system.taint) == 0
    )
    error_message = "System nodes must be on demand, at least two, and take pods without tolerations."
  }

  assert {
    condition = (
      one(aws_launch_template.system_node.metadata_options).http_tokens == "required"
      && one(aws_launch_template.system_node.metadata_options).http_put_response_hop_limit == 1
    )
    error_message = "System nodes must answer IMDSv2 only, and not to pods."
  }

  assert {
    condition = alltrue([
      for mapping in aws_launch_template.system_node.block_device_mappings : tobool(one(mapping.ebs).encrypted) && tobool(one(mapping.ebs).delete_on_termination)
    ])
    error_message = "Their disks must be encrypted, and go with them."
  }

  assert {
    condition     = toset([for each in aws_launch_template.system_node.tag_specifications : each.resource_type]) == toset(["instance", "volume", "network-interface"])
    error_message = "Instances, volumes and interfaces of system nodes must be tagged: default_tags do not reach them."
  }

  assert {
    condition = alltrue([
      for each in aws_launch_template.system_node.tag_specifications :
      each.tags["environment"] == "dev" && each.tags["owner"] == "platform-team" && each.tags["model"] == "smollm2-135m-instruct"
    ])
    error_message = "They must carry environment, owner and model."
  }

  # Add-ons.

  assert {
    condition = toset(concat(keys(aws_eks_addon.node), keys(aws_eks_addon.cluster))) == toset([
      "coredns", "eks-pod-identity-agent", "kube-proxy", "metrics-server", "vpc-cni",
    ])
    error_message = "There must be the network, names, Pod Identity and metrics."
  }

  assert {
    condition     = jsondecode(aws_eks_addon.node["vpc-cni"].configuration_values).enableNetworkPolicy == "true"
    error_message = "NetworkPolicies must be enforced."
  }

  # The network.

  assert {
    condition     = toset(aws_subnet.private[*].availability_zone) == toset(["us-east-1a", "us-east-1b", "us-east-1c"])
    error_message = "Nodes must be spread over three zones."
  }

  assert {
    condition     = length(toset(concat(aws_subnet.private[*].cidr_block, aws_subnet.public[*].cidr_block))) == 6
    error_message = "Subnets must not share addresses."
  }

  assert {
    condition     = alltrue([for subnet in concat(aws_subnet.private[*], aws_subnet.public[*]) : subnet.map_public_ip_on_launch != true])
    error_message = "No node may get a public address."
  }

  assert {
    condition     = aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway" && aws_vpc_endpoint.s3.route_table_ids == toset(aws_route_table.private[*].id)
    error_message = "Models must come from S3 past the NAT gateway, in every zone."
  }

  assert {
    condition     = length(aws_default_security_group.closed.ingress) == 0 && length(aws_default_security_group.closed.egress) == 0
    error_message = "The VPC's default security group must let nothing through."
  }

  assert {
    condition     = length(aws_eks_access_entry.admin) == 0
    error_message = "Nobody but the creator is an administrator unless named."
  }
}

run "as_asked" {
  variables {
    cluster_name           = "gpu"
    kubernetes_version     = "1.33"
    support_type           = "EXTENDED"
    environment            = "production"
    model                  = "llama-3.1-8b"
    tags                   = { cost-center = "42" }
    zones                  = ["us-east-1b", "us-east-1d", "us-east-1f"]
    vpc_cidr               = "10.9.0.0/18"
    nat                    = "per-zone"
    interface_endpoints    = true
    endpoint_public_access = false
    creator_admin          = false
    admin_principal_arns   = ["arn:aws:iam::123456789012:role/platform"]
    control_plane_logs     = ["api", "audit", "authenticator", "controllerManager", "scheduler"]
    log_retention_days     = 365
    addon_versions         = { coredns = "v1.12.4-eksbuild.1" }
    ebs_csi_driver         = true
    system_node_type       = "m7i.large"
    system_nodes           = 3
    system_node_disk_gib   = 80
  }

  assert {
    condition = (
      aws_eks_cluster.this.name == "gpu" && aws_eks_cluster.this.version == "1.33" && aws_eks_node_group.system.version == "1.33"
      && one(aws_eks_cluster.this.upgrade_policy).support_type == "EXTENDED"
      && length(aws_eks_cluster.this.enabled_cluster_log_types) == 5
      && aws_cloudwatch_log_group.control_plane.retention_in_days == 365
    )
    error_message = "Name, versions, support and logs must be as asked."
  }

  assert {
    condition     = !one(aws_eks_cluster.this.vpc_config).endpoint_public_access && one(aws_eks_cluster.this.vpc_config).endpoint_private_access
    error_message = "The public endpoint must be switchable; the private one stays."
  }

  assert {
    condition = (
      !one(aws_eks_cluster.this.access_config).bootstrap_cluster_creator_admin_permissions
      && keys(aws_eks_access_entry.admin) == ["arn:aws:iam::123456789012:role/platform"]
      && endswith(aws_eks_access_policy_association.admin["arn:aws:iam::123456789012:role/platform"].policy_arn, "/AmazonEKSClusterAdminPolicy")
    )
    error_message = "Administrators must be those named, and not the creator."
  }

  assert {
    condition     = length(aws_nat_gateway.this) == 3 && [for route in aws_route.private_out : route.nat_gateway_id] == aws_nat_gateway.this[*].id
    error_message = "Each zone must go out through its own gateway."
  }

  assert {
    condition     = join(" ", aws_subnet.private[*].availability_zone) == "us-east-1b us-east-1d us-east-1f"
    error_message = "The zones must be those named."
  }

  assert {
    condition = (
      toset(keys(aws_vpc_endpoint.interface)) == toset(["ecr.api", "ecr.dkr", "sts", "ec2", "sqs", "eks", "eks-auth", "ssm", "logs", "monitoring"])
      && alltrue([for endpoint in aws_vpc_endpoint.interface : endpoint.private_dns_enabled && endpoint.subnet_ids == toset(aws_subnet.private[*].id)])
      && aws_vpc_security_group_ingress_rule.endpoints[0].from_port == 443 && aws_vpc_security_group_ingress_rule.endpoints[0].cidr_ipv4 == "10.9.0.0/18"
    )
    error_message = "The private endpoints must be all there, in each zone, for HTTPS from within."
  }

  assert {
    condition     = aws_eks_addon.cluster["coredns"].addon_version == "v1.12.4-eksbuild.1" && aws_eks_addon.ebs_csi[0].addon_name == "aws-ebs-csi-driver"
    error_message = "Add-ons must be pinned and added as asked."
  }

  assert {
    condition = (
      aws_eks_node_group.system.instance_types == tolist(["m7i.large"])
      && one(aws_eks_node_group.system.scaling_config).desired_size == 3
      && one(one(aws_launch_template.system_node.block_device_mappings).ebs).volume_size == 80
    )
    error_message = "System nodes must be as asked."
  }

  assert {
    condition     = tomap(output.tags) == tomap({ cost-center = "42", environment = "production", owner = "platform-team", model = "llama-3.1-8b" })
    error_message = "Tags must be as asked."
  }
}

run "no_way_out" {
  command = plan

  variables {
    nat                 = "none"
    interface_endpoints = true
  }

  assert {
    condition     = length(aws_nat_gateway.this) + length(aws_eip.nat) + length(aws_route.private_out) == 0
    error_message = "nat = none must leave no gateway, address or route."
  }

  assert {
    condition     = output.region == "us-east-1" && length(aws_vpc_endpoint.interface) == 10
    error_message = "Without a way out every service must have its private endpoint."
  }
}
