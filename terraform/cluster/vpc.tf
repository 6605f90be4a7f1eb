# Three zones, each with a private subnet for nodes and pods and a small public one for NAT gateways and load balancers.

locals {
  # Zone to the gateway that its nodes go out through; none where nat is none.
  nat_zones = {
    none     = []
    single   = slice(local.zones, 0, 1)
    per-zone = local.zones
  }[var.nat]
}

resource "aws_vpc" "this" {
  # checkov:skip=CKV2_AWS_11: Flow logs cost by the gigabyte, and pods make many. Who must keep them adds them here.
  cidr_block           = var.vpc_cidr
  enable_dns_support   = true
  enable_dns_hostnames = true # private endpoints are found by name

  tags = { Name = var.cluster_name }

  lifecycle {
    precondition {
      condition     = length(local.zones) == 3
      error_message = "The region ${var.region} has ${length(local.usable_zones)} availability zones for this account, and the cluster wants three: take another region."
    }
  }
}

# The group that comes with a VPC and lets its members talk. Nothing uses it, so it lets nothing through.
resource "aws_default_security_group" "closed" {
  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.cluster_name}-default-closed" }
}

resource "aws_subnet" "private" {
  count = length(local.zones)

  vpc_id            = aws_vpc.this.id
  availability_zone = local.zones[count.index]
  cidr_block        = cidrsubnet(var.vpc_cidr, 3, count.index)

  tags = merge(local.discovery_tag, {
    Name                              = "${var.cluster_name}-private-${local.zones[count.index]}"
    "kubernetes.io/role/internal-elb" = "1"
  })
}

resource "aws_subnet" "public" {
  count = length(local.zones)

  vpc_id            = aws_vpc.this.id
  availability_zone = local.zones[count.index]
  # The private ones end at three eighths; these begin at the half.
  cidr_block              = cidrsubnet(var.vpc_cidr, 6, 32 + count.index)
  map_public_ip_on_launch = false # nothing is launched here that does not bring its own address

  tags = {
    Name                     = "${var.cluster_name}-public-${local.zones[count.index]}"
    "kubernetes.io/role/elb" = "1"
  }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id

  tags = { Name = var.cluster_name }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.cluster_name}-public" }
}

resource "aws_route" "public_out" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_route_table_association" "public" {
  count = length(local.zones)

  subnet_id      = aws_subnet.public[count.index].id
  route_table_id = aws_route_table.public.id
}

resource "aws_eip" "nat" {
  count = length(local.nat_zones)

  domain = "vpc"

  tags = { Name = "${var.cluster_name}-nat-${local.nat_zones[count.index]}" }

  depends_on = [aws_internet_gateway.this]
}

resource "aws_nat_gateway" "this" {
  count = length(local.nat_zones)

  allocation_id = aws_eip.nat[count.index].id
  subnet_id     = aws_subnet.public[count.index].id

  tags = { Name = "${var.cluster_name}-${local.nat_zones[count.index]}" }

  # A gateway without its way out fails to start.
  depends_on = [aws_route.public_out]
}

resource "aws_route_table" "private" {
  count = length(local.zones)

  vpc_id = aws_vpc.this.id

  tags = { Name = "${var.cluster_name}-private-${local.zones[count.index]}" }
}

resource "aws_route" "private_out" {
  count = var.nat == "none" ? 0 : length(local.zones)

  route_table_id         = aws_route_table.private[count.index].id
  destination_cidr_block = "0.0.0.0/0"
  nat_gateway_id         = aws_nat_gateway.this[var.nat == "per-zone" ? count.index : 0].id
}

resource "aws_route_table_association" "private" {
  count = length(local.zones)

  subnet_id      = aws_subnet.private[count.index].id
  route_table_id = aws_route_table.private[count.index].id
}
