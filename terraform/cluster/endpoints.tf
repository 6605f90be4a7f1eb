# Ways to AWS that pass no NAT gateway. S3's is free, and the model's gigabytes go through it; the others cost by the hour.

locals {
  # Named as their services are. eks-auth gives pods their roles; without ec2, sqs and eks Karpenter is blind.
  interface_services = var.interface_endpoints ? toset([
    "ecr.api", "ecr.dkr", "sts", "ec2", "sqs", "eks", "eks-auth", "ssm", "logs", "monitoring",
  ]) : toset([])
}

resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = aws_route_table.private[*].id

  tags = { Name = "${var.cluster_name}-s3" }
}

resource "aws_security_group" "endpoints" {
  count = var.interface_endpoints ? 1 : 0

  name_prefix = "${var.cluster_name}-endpoints-"
  description = "HTTPS from within the VPC to the private endpoints of AWS services"
  vpc_id      = aws_vpc.this.id

  tags = { Name = "${var.cluster_name}-endpoints" }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_vpc_security_group_ingress_rule" "endpoints" {
  count = var.interface_endpoints ? 1 : 0

  security_group_id = aws_security_group.endpoints[0].id
  description       = "HTTPS from nodes and pods"
  cidr_ipv4         = var.vpc_cidr
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_endpoint" "interface" {
  for_each = local.interface_services

  vpc_id              = aws_vpc.this.id
  service_name        = "com.amazonaws.${var.region}.${each.value}"
  vpc_endpoint_type   = "Interface"
  subnet_ids          = aws_subnet.private[*].id
  security_group_ids  = aws_security_group.endpoints[*].id
  private_dns_enabled = true

  tags = { Name = "${var.cluster_name}-${each.value}" }
}
