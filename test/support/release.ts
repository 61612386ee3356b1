import { execFile } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { temporaryDirectorySync } from './directories.ts'

export const ROOT = fileURLToPath(new URL('../..', import.meta.url))

/** What package.json says. */
export const { version: VERSION }: { readonly version: string } = JSON.parse(
  readFileSync(join(ROOT, 'package.json'), 'utf8'),
)

const exec = promisify(execFile)

/** Makes a release in a directory, from this project's folder or a copy of it. */
export async function makeRelease(directory: string, root = ROOT) {
  await exec(process.execPath, ['--import', 'tsx', 'scripts/dist.ts', '--out', directory], {
    cwd: root,
  })
  return {
    package: join(directory, `plant-store-${VERSION}.tgz`),
    archive: join(directory, `plant-store-${VERSION}-node.tar.gz`),
    folder: join(directory, 'plant-store'),
    billOfMaterials: join(directory, `plant-store-${VERSION}.cdx.json`),
  }
}

let made: ReturnType<typeof makeRelease> | undefined

/** The release of this project's folder, made once in a process. */
export function projectRelease() {
  return (made ??= makeRelease(join(temporaryDirectorySync(), 'release')))
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
