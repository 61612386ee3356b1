import type { Realm } from '../../test/support/oracle/realm.ts'
import type { Tokens } from './requests.ts'

/** Tokens that are signed well and worth nothing, and some that are hardly tokens. */
export function hopelessTokens(realm: Realm, sub: string): Tokens {
  const part = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url')
  const good = realm.token({ sub })
  const claims = [
    ...[{ exp: 1_700_000_000 }, { exp: '4102444800' }, { exp: undefined }, { exp: null }],
    ...[{ nbf: 4_000_000_000 }, { iat: 'now' }, { iss: 'https://other.test' }, { iss: undefined }],
    ...[{ aud: 'other' }, { aud: undefined }, { aud: ['a', 'b'] }, { aud: { plants: 'plants' } }],
    ...[{ sub: undefined }, { sub: '' }, { sub: 7 }, { sub: [sub] }, { sub: null }],
    ...[{ sub: { toString: sub } }, { sub: '\ud800' }],
  ]
  const headers = [
    ...[{ typ: 'logout+jwt' }, { typ: 7 }, { crit: ['b64'], b64: false }, { crit: ['x'] }],
    { alg: 'none' },
  ]
  return [
    `${part({ alg: 'none' })}.${part({ sub })}.`,
    ...claims.map((changed) => realm.token({ sub, ...changed })),
    ...headers.map((changed) => realm.token({ sub }, changed)),
    ...[`${good}=`, `${good}.a.b`, good.split('.').slice(0, 2).join('.'), `.${good}`],
    ...['..', 'a', 'a.b.c', 'e'.repeat(13_000), `${good.slice(0, -4)}AAAA`],
  ]
}
