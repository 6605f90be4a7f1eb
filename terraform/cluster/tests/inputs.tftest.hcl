# Each input that would fail late, or quietly do something else, is refused at once with a sentence. Many in one run, since a
# run costs seconds: each of them must fail, or the run does.

mock_provider "aws" {
  source = "./tests/mocks"
}

variables {
  owner = "platform-team"
}

run "wrong" {
  command = plan

  variables {
    region               = "Frankfurt"
    cluster_name         = "no_underscores"
    kubernetes_version   = "1.31"
    support_type         = "LONG"
    environment          = "Dev!"
    owner                = ""
    model                = "llama;8b"
    tags                 = { owner = "somebody" }
    vpc_cidr             = "10.0.0.0/24"
    nat                  = "two"
    public_access_cidrs  = ["everywhere"]
    creator_admin        = false # and no administrator named
    control_plane_logs   = ["everything"]
    log_retention_days   = 31
    addon_versions       = { cni = "v1" }
    system_node_type     = "g5.xlarge"
    system_nodes         = 1
    system_node_disk_gib = 8
  }

  expect_failures = [
    var.region, var.cluster_name, var.kubernetes_version, var.support_type, var.environment, var.owner, var.model, var.tags,
    var.vpc_cidr, var.nat, var.public_access_cidrs, var.creator_admin, var.control_plane_logs,
    var.log_retention_days, var.addon_versions, var.system_node_type, var.system_nodes, var.system_node_disk_gib,
  ]
}

run "wrong_in_other_ways" {
  command = plan

  variables {
    cluster_name         = "a123456789a123456789a123456789a12345678" # 39 characters
    vpc_cidr             = "ten"
    zones                = ["us-west-2a", "us-west-2b", "us-west-2c"] # another region's
    nat                  = "none"                                     # and no private endpoints
    public_access_cidrs  = []
    admin_principal_arns = ["platform"]
    system_node_type     = "m7g.large" # another architecture's
    system_nodes         = 2.5
  }

  expect_failures = [
    var.cluster_name, var.vpc_cidr, var.zones, var.nat, var.public_access_cidrs, var.admin_principal_arns,
    var.system_node_type, var.system_nodes,
  ]
}

run "wrong_in_yet_others" {
  command = plan

  variables {
    vpc_cidr = "10.0.0.0/8"
    zones    = ["us-east-1a", "us-east-1b"]
  }

  expect_failures = [var.vpc_cidr, var.zones]
}

run "too_few_zones" {
  command = plan

  override_data {
    target = data.aws_availability_zones.available
    values = { names = ["us-west-1a", "us-west-1c"] }
  }

  variables {
    region = "us-west-1"
  }

  expect_failures = [aws_vpc.this]
}
