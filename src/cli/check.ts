/* `check`: whether the data directory is sound. */

import { readWithoutKeys } from './settings.ts'
import { escaped } from '../errors.ts'
import { checkDirectory } from '../store/sqljs/inspect.ts'
import { Progress } from './progress.ts'

export const run = async (): Promise<string> =>
  escaped(await checkDirectory(embeddedStore('check'), undefined, new Progress()))

/** The data directory. @throws Error if plants are in etcd. */
export function embeddedStore(command: string): string {
  const { etcd, data } = readWithoutKeys(process.env, 'ignored')
  if (!etcd) return data
  const what = `${command} is for the embedded store`
  const look = 'look at what is in etcd with "etcdctl endpoint status"'
  throw new Error(`${what}: ${look}, and save it with "etcdctl snapshot save"`)
}
