import { execFile } from 'node:child_process'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

export const ROOT = fileURLToPath(new URL('../..', import.meta.url))

const exec = promisify(execFile)

export interface Release {
  readonly package: string
  readonly archive: string
  readonly folder: string
  readonly billOfMaterials: string
}

/** Makes a release in a directory, from this project's folder or a copy of it. */
export async function makeRelease(directory: string, root = ROOT): Promise<Release> {
  await exec(process.execPath, ['--import', 'tsx', 'scripts/dist.ts', '--out', directory], {
    cwd: root,
  })
  return {
    package: join(directory, 'plant-store-1.0.0.tgz'),
    archive: join(directory, 'plant-store-1.0.0-node.tar.gz'),
    folder: join(directory, 'plant-store'),
    billOfMaterials: join(directory, 'plant-store-1.0.0.cdx.json'),
  }
}

/** The names in an archive, without the folder that all begin with. */
export async function listArchive(file: string): Promise<string[]> {
  const { stdout } = await exec('tar', ['-tzf', file])
  return stdout
    .trim()
    .split('\n')
    .map((name) => name.replace(/^[^/]+\//, ''))
    .sort()
}

export async function unpack(file: string, directory: string): Promise<void> {
  await exec('tar', ['-xzf', file, '-C', directory])
}
