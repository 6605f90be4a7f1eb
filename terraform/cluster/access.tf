# Who may talk to the Kubernetes API. All that works in the cluster depends on these, so on the way down they go after it:
# an administrator whose entry went first could remove nothing more.

resource "aws_eks_access_entry" "admin" {
  for_each = var.admin_principal_arns

  cluster_name  = aws_eks_cluster.this.name
  principal_arn = each.value
}

resource "aws_eks_access_policy_association" "admin" {
  for_each = var.admin_principal_arns

  cluster_name  = aws_eks_cluster.this.name
  principal_arn = aws_eks_access_entry.admin[each.value].principal_arn
  policy_arn    = "arn:${local.partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"

  access_scope {
    type = "cluster"
  }
}

# Nodes that Karpenter starts join as this role. EKS makes the entry of its own node group itself.
resource "aws_eks_access_entry" "karpenter_nodes" {
  cluster_name  = aws_eks_cluster.this.name
  principal_arn = aws_iam_role.karpenter_node.arn
  type          = "EC2_LINUX"

  # A node that is still there when its role loses these can neither leave nor be seen.
  depends_on = [aws_iam_role_policy_attachment.karpenter_node]
}
