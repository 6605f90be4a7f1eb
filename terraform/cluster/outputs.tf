# What the other root, the bootstrap script and the charts need. Whoever works in the cluster waits for these, and these wait
# until somebody may work there.

output "region" {
  description = "AWS region of everything here."
  value       = var.region
}

output "cluster_name" {
  description = "Name of the EKS cluster; known only when administrators may use it."
  value       = aws_eks_cluster.this.name

  depends_on = [aws_eks_access_policy_association.admin, aws_eks_access_entry.karpenter_nodes]
}

output "cluster_arn" {
  description = "ARN of the EKS cluster."
  value       = aws_eks_cluster.this.arn
}

output "cluster_endpoint" {
  description = "URL of the Kubernetes API."
  value       = aws_eks_cluster.this.endpoint

  depends_on = [aws_eks_access_policy_association.admin, aws_eks_access_entry.karpenter_nodes]
}

output "cluster_certificate_authority" {
  description = "Certificate of the Kubernetes API's authority, base64."
  value       = aws_eks_cluster.this.certificate_authority[0].data
}

output "cluster_security_group_id" {
  description = "Security group that control plane and nodes share."
  value       = aws_eks_cluster.this.vpc_config[0].cluster_security_group_id
}

output "kubernetes_version" {
  description = "Kubernetes minor version of the control plane."
  value       = aws_eks_cluster.this.version
}

output "kubeconfig_command" {
  description = "Writes the entry that kubectl and helm use."
  value       = "aws eks update-kubeconfig --region ${var.region} --name ${aws_eks_cluster.this.name}"
}

output "vpc_id" {
  description = "The VPC."
  value       = aws_vpc.this.id
}

output "zones" {
  description = "The three availability zones."
  value       = local.zones
}

output "private_subnet_ids" {
  description = "Subnets of nodes and pods, in the order of the zones."
  value       = aws_subnet.private[*].id
}

output "public_subnet_ids" {
  description = "Subnets of NAT gateways and load balancers, in the order of the zones."
  value       = aws_subnet.public[*].id
}

output "node_role_name" {
  description = "IAM role of the nodes that Karpenter starts."
  value       = aws_iam_role.karpenter_node.name
}

output "node_role_arn" {
  description = "The same role's ARN."
  value       = aws_iam_role.karpenter_node.arn
}

output "karpenter_role_arn" {
  description = "IAM role of Karpenter's controller, given to its service account by EKS Pod Identity."
  value       = aws_iam_role.karpenter.arn
}

output "interruption_queue_name" {
  description = "SQS queue that tells Karpenter which nodes go."
  value       = aws_sqs_queue.interruption.name
}

output "interruption_queue_arn" {
  description = "The same queue's ARN."
  value       = aws_sqs_queue.interruption.arn
}

output "discovery_tag" {
  description = "What Karpenter finds this cluster's subnets and security group by."
  value       = local.discovery_tag
}

output "tags" {
  description = "Tags of everything here, for what is made elsewhere."
  value       = local.tags
}

output "karpenter_values" {
  description = "Values of the chart karpenter."
  value = {
    settings = {
      clusterName       = aws_eks_cluster.this.name
      clusterEndpoint   = aws_eks_cluster.this.endpoint
      interruptionQueue = aws_sqs_queue.interruption.name
      eksControlPlane   = true
      isolatedVPC       = var.nat == "none"
    }
    serviceAccount = { name = local.karpenter_service_account }
  }
}

output "soloist_nodes_values" {
  description = "Values of the chart helm/soloist-nodes."
  value = {
    clusterName = aws_eks_cluster.this.name
    nodeRole    = aws_iam_role.karpenter_node.name
    discovery   = local.discovery_tag["karpenter.sh/discovery"]
    tags        = local.tags
  }
}
