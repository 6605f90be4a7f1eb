# Where nodes pull the image from. A tag means one image for good.

resource "aws_ecr_repository" "soloist" {
  # checkov:skip=CKV_AWS_136: Encrypted with ECR's own key. The image holds no secret and no model of yours.
  name                 = var.image_repository
  image_tag_mutability = "IMMUTABLE"
  force_delete         = var.destroy_data

  image_scanning_configuration {
    scan_on_push = true
  }

  encryption_configuration {
    encryption_type = "AES256"
  }
}

resource "aws_ecr_lifecycle_policy" "soloist" {
  repository = aws_ecr_repository.soloist.name

  policy = jsonencode({
    rules = [
      {
        rulePriority = 1
        description  = "Layers that no tag names, a week after their push"
        selection    = { tagStatus = "untagged", countType = "sinceImagePushed", countUnit = "days", countNumber = 7 }
        action       = { type = "expire" }
      },
      {
        rulePriority = 2
        description  = "All but the newest ${var.images_kept}"
        selection    = { tagStatus = "any", countType = "imageCountMoreThan", countNumber = var.images_kept }
        action       = { type = "expire" }
      },
    ]
  })
}
